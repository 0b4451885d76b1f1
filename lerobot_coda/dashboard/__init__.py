"""The page of a run that is under way, in a browser: `serve(run)`. It reads the run's folder and writes nothing."""

import contextlib
import os
import socket
from pathlib import Path
from typing import Any

from libero_pro.record import RecordError

HOST, PORT = "127.0.0.1", 7860
__all__ = ["HOST", "PORT", "serve"]


def serve(run: Path, host: str = HOST, port: int = PORT) -> None:
    """Serves the page of the run in the folder `run` until it is interrupted; port 0 takes any that is free.

    Raises RecordError where gradio is missing, `run` is no folder or the address cannot be had. The app of a Space is
    this call with the host "0.0.0.0".
    """
    run = Path(run).absolute()
    if not run.is_dir():
        raise RecordError(f"{run} is no folder; give the one that `lerobot-coda evolve` writes to")
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # read when gradio is imported
    with _listening(host, port) as found:
        try:
            import gradio as gr
            import uvicorn
            from fastapi import FastAPI

            from lerobot_coda.dashboard.page import FONTS, MONOSPACE, STYLE, build_page
            from lerobot_coda.report import lineage
        except ModuleNotFoundError as error:
            raise RecordError(
                f"the dashboard needs {error.name}: pip install 'lerobot_policy_coda[dashboard]'"
            ) from None

        app = FastAPI(openapi_url=None)
        app.mount("/report", _report(run))
        # Not `launch`: it gives up where the server needs more than five seconds, as beside a run that is at work.
        app = gr.mount_gradio_app(
            app,
            build_page(run),
            path="/",
            footer_links=[],
            run_history=False,
            theme=gr.themes.Base(font=FONTS, font_mono=MONOSPACE),
            css=STYLE + lineage.STYLE,
        )
        print(f"dashboard of {run}: http://{host}:{found.getsockname()[1]} (Ctrl-C ends it)", flush=True)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
        with contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[found])


def _report(run: Path) -> Any:
    """An app that serves the files of the run's report: none before there is one, and nothing beside it."""
    from starlette.staticfiles import StaticFiles

    class Report(StaticFiles):
        async def check_config(self) -> None:
            """A run may get its report later."""

    return Report(directory=run / "report", check_dir=False)


def _listening(host: str, port: int) -> socket.socket:
    """A socket at the address; RecordError if it cannot be had."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise RecordError(f"{host}:{port} cannot be served ({reason}); choose others with --host and --port") from None
