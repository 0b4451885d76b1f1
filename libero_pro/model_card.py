"""A benchmark run in a checkpoint's model card: a section for readers, `model-index` metadata for the Hub."""

import re
from pathlib import Path

from huggingface_hub import EvalResult, ModelCard, ModelCardData

from libero_pro.benchmark import BenchmarkResult
from libero_pro.defects import defects_in
from libero_pro.record import RecordError, write_atomically
from libero_pro.results_table import results_table

_DATASET = "Zxy-MLlab/LIBERO-PRO"
_START, _END = "<!-- libero-pro results -->", "<!-- end of libero-pro results -->"


def evaluations(result: BenchmarkResult) -> list[EvalResult]:
    """The run as Hub evaluation results: one a suite, in percent."""
    protocol = result.protocol
    settings = f"{protocol.prompt_source} prompts, {protocol.episodes_per_task} episodes a task"
    return [
        EvalResult(
            task_type="robotics",
            task_name="Robotics",
            dataset_type=_DATASET,
            dataset_name=f"LIBERO-Pro {suite} ({settings})",
            dataset_config=suite,
            dataset_args={
                "prompt_source": protocol.prompt_source,
                "episodes": rate["episodes"],
                "n_action_steps": protocol.n_action_steps,
                "horizon": protocol.horizons[suite],
                "render_profile": protocol.profile,
            },
            metric_type="success_rate",
            metric_name="Success rate (%)",
            metric_value=round(100 * rate["rate"], 1),
            metric_args={"wilson_95": [round(100 * rate["low"], 1), round(100 * rate["high"], 1)]},
        )
        for suite, rate in result.summary["per_suite"].items()
        if rate["rate"] is not None
    ]


def section(result: BenchmarkResult) -> str:
    """The Markdown section: results with footnotes, then the protocol card."""
    source = result.protocol.prompt_source
    defects = defects_in((row["suite"], row["task_id"], row["init_state_id"], source) for row in result.rows)
    table = results_table(result.summary, result.protocol, defects)
    try:
        protocol_card = (result.out / "card.md").read_text(encoding="utf-8")
    except OSError as error:
        raise RecordError(f"cannot read {result.out / 'card.md'}: {error.strerror}; run the benchmark again") from None
    # Both are documents of their own; in a model card their titles are subsections.
    return f"{_START}\n{re.sub('^# ', '## ', table)}\n{re.sub('^# ', '### ', protocol_card)}{_END}\n"


def update_card(path: Path, result: BenchmarkResult, *, model_name: str) -> None:
    """Writes the section and the metadata into a model card (README.md); a former section is replaced, the rest kept.

    A card that does not exist is made. RecordError if its metadata cannot be read.
    """
    path = Path(path)
    try:
        card = ModelCard(path.read_text(encoding="utf-8") if path.exists() else "")
    except (OSError, ValueError) as error:
        raise RecordError(f"{path} is not a model card: {str(error).splitlines()[0]}") from None
    data = card.data if isinstance(card.data, ModelCardData) else ModelCardData()
    mine = evaluations(result)
    measured = {_what(new) for new in mine}
    kept = [old for old in data.eval_results or [] if _what(old) not in measured]
    data.model_name = data.model_name or model_name
    data.eval_results = [*kept, *mine]
    card.data = data
    before, _, rest = card.text.partition(_START)
    after = rest.partition(_END)[2].lstrip("\n")
    card.text = "\n\n".join(part.strip("\n") for part in (before, section(result), after) if part.strip()) + "\n"
    write_atomically(path, str(card).encode())


def _what(evaluation: EvalResult) -> tuple[str, str | None, str | None]:
    """What a result is about: a later one of the same replaces it."""
    source = (evaluation.dataset_args or {}).get("prompt_source")
    return evaluation.dataset_type, evaluation.dataset_config, source
