# lerobot-coda on CPUs. From the root of the checkout:
#   docker build -f docker/cpu.Dockerfile -t lerobot-coda:cpu .
#   docker run --rm -v "$PWD/runs:/work/runs" lerobot-coda:cpu make demo
#   docker run --rm lerobot-coda:cpu lerobot-coda doctor
FROM python:3.12.12-slim-bookworm

# OpenGL without a display, as the README asks for, and make for its two commands.
RUN apt-get update \
    && apt-get install -y --no-install-recommends make libegl1 libgl1-mesa-dri libosmesa6 \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /work
# PyTorch's builds without CUDA satisfy the same pins and spare several gigabytes.
ENV PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu \
    PIP_NO_CACHE_DIR=1 \
    PATH=/work/.venv/bin:$PATH
COPY . .
RUN make setup PYTHON=/usr/local/bin/python3.12 \
    && python -m lerobot_coda.preflight runs
CMD ["make", "demo"]
