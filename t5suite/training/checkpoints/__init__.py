"""Checkpoints: written as a whole or not at all, verified before they are read.

    >>> commit_checkpoint("runs/x", 400, write, ranks, run_id="5f3a9c01")
    PosixPath('runs/x/checkpoint-400')
    >>> rotate("runs/x", limit=3)
    []
    >>> find_checkpoint("runs/x", "auto", ranks)
    PosixPath('runs/x/checkpoint-400')

`tensors` and `states` write files and hash them as they are written, `weights` has transformers do so, `manifests` say
what a checkpoint must hold, `committing` gives it its name, `finding` chooses the one to go on from, `quarantine` sets
damaged ones aside, and `rotation` deletes old ones. `naming` has the names of all these folders.
"""

from t5suite.training.checkpoints.committing import commit_checkpoint
from t5suite.training.checkpoints.finding import (
    find_checkpoint,
    missing_part,
    named_checkpoint,
    newest_verified,
    resume_choice,
)
from t5suite.training.checkpoints.manifests import MANIFEST_FILE, Manifest, damage, read_manifest, verify
from t5suite.training.checkpoints.naming import STATE_FILE, checkpoint_folder, checkpoint_step, checkpoints
from t5suite.training.checkpoints.quarantine import set_aside
from t5suite.training.checkpoints.rotation import (
    checkpoints_to_delete,
    clean_leftovers,
    rotate,
)
from t5suite.training.checkpoints.states import (
    load_state,
    random_state,
    restore_optimizer,
    restore_random_state,
    save_state,
)
from t5suite.training.checkpoints.tensors import Record, settle, write_bytes, write_json, write_tensors
from t5suite.training.checkpoints.weights import recorded_weights

__all__ = [
    "MANIFEST_FILE",
    "STATE_FILE",
    "Manifest",
    "Record",
    "checkpoint_folder",
    "checkpoint_step",
    "checkpoints",
    "checkpoints_to_delete",
    "clean_leftovers",
    "commit_checkpoint",
    "damage",
    "find_checkpoint",
    "load_state",
    "missing_part",
    "named_checkpoint",
    "newest_verified",
    "random_state",
    "read_manifest",
    "recorded_weights",
    "restore_optimizer",
    "restore_random_state",
    "resume_choice",
    "rotate",
    "save_state",
    "set_aside",
    "settle",
    "verify",
    "write_bytes",
    "write_json",
    "write_tensors",
]
