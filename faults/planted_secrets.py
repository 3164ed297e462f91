"""X5: tokens that are planted wherever a user may keep them, and searched wherever a run leaves something.

>>> found(Path("runs/a"), {"hub_token": "hf_..."})
['manifest.json: hub_token']
"""

import os
from pathlib import Path

from faults import victims
from faults.harness import Context, Outcome, all_hold
from faults.mirrored import SCRIPTS, loopback

# Made up, in the shapes of the real ones.
SECRETS = {
    "WANDB_API_KEY": "5ec2e7a11c0ffee0ddba11ade1ec7ab1ef00d5e7",
    "HF_TOKEN": "hf_EnvironmentTokenOfNobodyAtAllXyzAbCd",
    "--hub_token": "hf_FlagTokenOfNobodyAtAllXyzAbCdEfGhIj",
    "WANDB_TAGS": "hf_TagTokenOfNobodyAtAllXyzAbCdEfGhIjKl",
    "YAML, nested": "hf_NestedTokenOfNobodyAtAllXyzAbCdEfGh",
    "netrc": "ab1ef00d5e75ec2e7a11c0ffee0ddba11ade1ec7",
    "misspelled flag": "hf_MisspelledTokenOfNobodyAtAllXyzAbCd",
}
CONFIG = (
    "hub_token: {flag}\ngradient_checkpointing_kwargs:\n  nested:\n    access_token: {nested}\n    note: key {nested}\n"
)


def x5_secrets_stay_secret(context: Context) -> Outcome:
    """Whole runs with tokens everywhere; their directories, outputs and every message to W&B are searched."""
    cases = {}
    with loopback() as server:
        server.api_key = SECRETS["WANDB_API_KEY"]
        variables = {**_variables(context), **server.environment()}
        for script in SCRIPTS[:1] if context.quick else SCRIPTS:
            cases |= _searched(context, script, server, variables)
        messages = "\n".join(f"{path} {body}" for _, _, path, _, body in server.requests)
        cases["messages to W&B"] = _named(messages.encode())
        cases["W&B was reached"] = None if server.runs else "no run came to the server"
    return all_hold(cases, "without a token")


def _searched(context: Context, script: str, server, variables) -> dict[str, str | None]:
    config = context.directory / f"{script}.yaml"
    config.write_text(CONFIG.format(flag=SECRETS["--hub_token"], nested=SECRETS["YAML, nested"]))
    flags = context.flags(script, report_to="all")
    given = [str(config), *flags, "--hub_token", SECRETS["--hub_token"]]
    whole = context.victim(script, given, env=variables)
    others = {
        "dry run": context.victim(script, [*given, "--dry_run", "true"], env=variables),
        "misspelled flag": context.victim(script, [*flags, f"--hub_tokn={SECRETS['misspelled flag']}"], env=variables),
        "misspelled value": context.victim(
            script, [*flags, f"--learning_rate={SECRETS['misspelled flag']}"], env=variables
        ),
    }
    whole.wait()
    cases = {
        f"{script}, files": "; ".join(found(whole.directory)) or None,
        f"{script}, output": _named(whole.output.encode()),
        f"{script}, exit": None if whole.code == 0 else f"exit {whole.code}: {whole.tail()}",
        f"{script}, resumed elsewhere": _refusal(context, script, given, whole, variables),
    }
    for name, victim in others.items():
        victim.wait()
        cases[f"{script}, {name}"] = _named(victim.output.encode())
    return cases


def _refusal(context, script, given, whole: victims.Victim, variables) -> str | None:
    """A run that is refused since its settings differ names them; not the secret ones."""
    refused = context.run(script, [*given, "--weight_decay", "0.5"], directory=whole.directory, env=variables)
    return f"exit {refused.code}" if refused.code != 78 else _named(refused.output.encode())


def found(directory: Path) -> list[str]:
    """`file: which` for every token in a file, or in a file's name, below a directory."""
    hits = []
    for path in sorted(directory.rglob("*")):
        content = path.read_bytes() if path.is_file() else b""
        which = _named(content + b"\n" + path.name.encode())
        hits += [f"{path.relative_to(directory)}: {which}"] if which else []
    return hits


def _named(text: bytes) -> str | None:
    hits = [name for name, secret in SECRETS.items() if secret.encode() in text]
    return f"has {', '.join(hits)}" if hits else None


def _variables(context: Context) -> dict[str, str]:
    netrc = context.directory / "netrc"
    netrc.write_text(f"machine api.wandb.ai\n  login user\n  password {SECRETS['netrc']}\n")
    os.chmod(netrc, 0o600)
    return {"HF_TOKEN": SECRETS["HF_TOKEN"], "WANDB_TAGS": SECRETS["WANDB_TAGS"], "NETRC": str(netrc)}
