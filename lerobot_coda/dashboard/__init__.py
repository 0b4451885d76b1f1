"""The page of a run that is under way, in a browser: `serve(run)`. It reads the run's folder and writes nothing."""

import os
import socket
from pathlib import Path

from libero_pro.record import RecordError

HOST, PORT = "127.0.0.1", 7860
__all__ = ["HOST", "PORT", "serve"]


def serve(run: Path, host: str = HOST, port: int = PORT) -> None:
    """Serves the page of the run in the folder `run` until it is interrupted.

    Raises RecordError where gradio is missing, `run` is no folder or the address cannot be had. A Space needs no more
    than this call with the host "0.0.0.0".
    """
    run = Path(run).absolute()
    if not run.is_dir():
        raise RecordError(f"{run} is no folder; give the one that `lerobot-coda evolve` writes to")
    _check_address(host, port)
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when gradio is imported
    try:
        import gradio as gr
    except ModuleNotFoundError:
        raise RecordError("the dashboard needs gradio: pip install 'lerobot_policy_coda[dashboard]'") from None
    from lerobot_coda.dashboard.page import FONTS, MONOSPACE, STYLE, build_page

    print(f"dashboard of {run}: http://{host}:{port} (Ctrl-C ends it)", flush=True)
    build_page(run).launch(
        server_name=host,
        server_port=port,
        share=False,
        quiet=True,
        footer_links=[],
        run_history=False,
        allowed_paths=[str(run / "report")],
        theme=gr.themes.Base(font=FONTS, font_mono=MONOSPACE),
        css=STYLE,
    )


def _check_address(host: str, port: int) -> None:
    """RecordError if the page could not be served there."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise RecordError(f"{host}:{port} cannot be served ({reason}); choose others with --host and --port") from None
