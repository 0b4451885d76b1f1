# lerobot-coda with an NVIDIA GPU: CUDA for the policies, EGL on the GPU for the images. From the root of the checkout:
#   docker build -f docker/gpu.Dockerfile -t lerobot-coda:gpu .
#   docker run --rm --gpus all -v "$PWD/runs:/work/runs" lerobot-coda:gpu lerobot-coda evolve recipes/smolvla_libero_pro.yaml
# The host needs the NVIDIA driver and its container toolkit; CUDA itself comes with PyTorch's packages.
# As the image of a training job on Hugging Face: lerobot-train --config_path=... --job.target=FLAVOR --job.image=IMAGE
FROM python:3.12.12-slim-bookworm

# libegl1 dispatches to the driver's EGL; Mesa stays for machines whose driver brings none.
RUN apt-get update \
    && apt-get install -y --no-install-recommends make libegl1 libgl1-mesa-dri libosmesa6 \
    && rm -rf /var/lib/apt/lists/*
# Tells libegl1 of the driver's library, which the toolkit mounts when `graphics` is asked for.
RUN mkdir -p /usr/share/glvnd/egl_vendor.d \
    && echo '{"file_format_version": "1.0.0", "ICD": {"library_path": "libEGL_nvidia.so.0"}}' \
        > /usr/share/glvnd/egl_vendor.d/10_nvidia.json

WORKDIR /work
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,graphics,utility \
    MUJOCO_GL=egl \
    PIP_NO_CACHE_DIR=1 \
    PATH=/work/.venv/bin:$PATH
COPY . .
RUN make setup PYTHON=/usr/local/bin/python3.12 \
    && python -m pip install -e ".[smolvla,pi,diffusion]" -c constraints.txt
CMD ["lerobot-coda", "doctor"]
