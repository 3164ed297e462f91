"""Objects of the user's own by name: `module:Name`, found as `import` finds the module.

>>> load_object("collections:OrderedDict", "--data_class")
<class 'collections.OrderedDict'>

Importing a module runs it: callers ask for a name that the user gave, or for `--trust_remote_code`.
"""

import importlib
from typing import Any

from t5suite.errors import ConfigError
from t5suite.lookup import suggestion


def load_object(spec: str, where: str) -> Any:
    """What `module:Name` names.

    Args:
      where: the flag or setting that named it, for errors.

    Raises:
      ConfigError: there is no such module, or nothing of that name in it.
    """
    module_name, _, name = spec.partition(":")
    if not (module_name and name):
        raise ConfigError(f"{where} {spec}: must be module:Name")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and not module_name.startswith(error.name):
            raise
        raise ConfigError(f"{where} {spec}: no module {module_name!r}; add its folder to PYTHONPATH") from None
    try:
        return getattr(module, name)
    except AttributeError:
        names = [other for other in vars(module) if not other.startswith("_")]
        raise ConfigError(f"{where} {spec}: {module_name} has no {name!r}; {suggestion(name, names)}") from None
