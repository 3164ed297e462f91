"""Checks of servers: whether the hub and W&B answer, or runs work without them."""

from t5suite.base.hub import why_hub_unreachable, why_unreachable
from t5suite.commands.checks.checkup import OK, WARN, CheckResult, Checkup, is_installed
from t5suite.tracking.backends import key_of_netrc


def check_hub(checkup: Checkup) -> list[CheckResult]:
    """Whether the hub answers; offline, how to work without it."""
    if checkup.is_set("HF_HUB_OFFLINE"):
        return [CheckResult(OK, "hub", "HF_HUB_OFFLINE is set: only local models and data")]
    server = checkup.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    trouble = why_hub_unreachable(server, checkup.timeout)
    if trouble is None:
        return [CheckResult(OK, "hub", f"{server} answers")]
    fix = "export HF_HUB_OFFLINE=1 (no 20 s of retries); t5suite mirror where there is a network, then --data_dir DIR"
    return [CheckResult(WARN, "hub", f"{server} does not answer ({trouble})", fix)]


def check_wandb(checkup: Checkup) -> list[CheckResult]:
    """Whether runs can be logged to W&B, or are kept for later."""
    if not is_installed("wandb"):
        return [CheckResult(OK, "wandb", "is not installed")]
    mode = checkup.environ.get("WANDB_MODE", "").lower()
    if mode == "disabled":
        return [CheckResult(OK, "wandb", "WANDB_MODE=disabled: nothing is sent, and nothing is kept for later")]
    if mode in ("offline", "dryrun"):
        what = f"WANDB_MODE={mode}: no server is needed (wandb sync sends it later)"
        return [CheckResult(OK, "wandb", what)]
    if checkup.is_set("WANDB_DISABLED"):
        what = "WANDB_DISABLED is set, but neither wandb nor transformers reads it: runs are sent"
        return [CheckResult(WARN, "wandb", what, "export WANDB_MODE=disabled")]
    server = checkup.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai"
    trouble = why_unreachable(server, checkup.timeout)
    if trouble is not None:
        fix = "export WANDB_MODE=offline; wandb sync later; t5suite sweep needs no server"
        return [CheckResult(WARN, "wandb", f"{server} does not answer ({trouble})", fix)]
    if not (checkup.environ.get("WANDB_API_KEY") or key_of_netrc(server, checkup.environ)):
        what = f"{server} answers, but there is no login"
        return [CheckResult(WARN, "wandb", what, "wandb login, or WANDB_MODE=offline")]
    return [CheckResult(OK, "wandb", f"{server} answers")]
