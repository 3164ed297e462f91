"""The part of a card about the machine: devices, time, energy and versions.

>>> energy_text({"joules": 5400.0, "of": ["NVIDIA H200"], "seconds": 12.0})
'1.50 Wh (5,400 J), measured over 12 s of training: NVIDIA H200'
"""

import platform

from t5suite.model_cards.facts import CardFacts
from t5suite.model_cards.markdown import table


def machine(facts: CardFacts) -> list[str]:
    """Hardware, seconds, energy and versions, as a table."""
    manifest = facts.manifest
    hardware, trained = manifest.get("hardware", {}), manifest.get("training", {})
    scoring = sum(seconds for seconds in manifest.get("seconds", {}).values() if seconds)
    rows = [
        ["processor", f"{hardware.get('cores', '?')} cores, {hardware.get('platform', platform.system())}"],
        ["accelerators", ", ".join(hardware.get("gpus", [])) or "none"],
        ["processes", processes(facts.settings)],
        ["seconds of training", seconds_text(manifest)],
        ["seconds of scoring", f"{scoring:.1f}" if scoring else ""],
        ["energy of training", energy_text(trained.get("energy"))],
        *[[name, version] for name, version in manifest["versions"].items() if version],
        ["commit", commit_text(manifest.get("commit"))],
    ]
    return ["## Machine", "", *table(["", ""], [row for row in rows if row[1]]), ""]


def processes(settings: dict) -> str:
    """How many processes shared an update, where the settings say so.

    >>> processes({"update_size": 32, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2})
    '2'
    """
    each = (settings.get("per_device_train_batch_size") or 0) * (settings.get("gradient_accumulation_steps") or 1)
    whole = settings.get("update_size") or 0
    return str(whole // each) if each and whole % each == 0 and whole >= each else ""


def seconds_text(manifest: dict) -> str:
    """How long training took; of a run in several parts, which one is meant."""
    trained = manifest.get("training", {})
    if trained.get("train_runtime") is None:
        return ""
    begun = trained.get("from_step")
    return f"{trained['train_runtime']:.1f}" + (f" (since update {begun:,}, where it went on)" if begun else "")


def energy_text(energy: dict | None) -> str:
    """What counters of the devices counted; never an estimate."""
    if not energy or energy.get("joules") is None:
        return "not measured" + (f" ({energy['why']})" if energy and energy.get("why") else "")
    joules, seconds = energy["joules"], energy["seconds"]
    return (
        f"{joules / 3600:.2f} Wh ({joules:,.0f} J), measured over {seconds:,.0f} s of training: "
        f"{', '.join(energy['of'])}" + (f"; {energy['why']}" if energy.get("why") else "")
    )


def commit_text(commit: dict | None) -> str:
    """The code's commit, and whether it was changed."""
    if not commit or not commit.get("commit"):
        return ""
    return commit["commit"][:12] + (", with changes" if commit.get("changed") else "")
