"""Files that come with the suite beside its code, found by name in a checkout and in an installed package.

>>> shipped_file("recipes", "mini.yaml")
PosixPath('/home/me/t5suite/recipes/mini.yaml')
"""

from pathlib import Path

FOLDERS = ("accelerate_configs", "clusters", "deepspeed_configs", "recipes", "slurm", "sweeps")


def shipped_folder(folder: str) -> Path:
    """The folder inside the installed package, or else at the root of the checkout."""
    package = Path(__file__).parent
    installed = package / folder
    return installed if installed.is_dir() else package.parent / folder


def shipped_file(folder: str, name: str) -> Path | None:
    """The file of that name, or None."""
    path = shipped_folder(folder) / name
    return path if path.is_file() else None
