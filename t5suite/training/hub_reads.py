"""What a run reads from the hub: its repositories, and their commits, the same on every rank and after a restart.

>>> begin_hub_reads("google/t5-v1_1-small=4e79f2", None)
>>> requests = [*model_requests(arguments.model), *data_requests(plan, arguments.data, ["train", "validation"])]
>>> settle_hub_reads(requests, run.hub_before)
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from t5suite.base.errors import UserError
from t5suite.base.hub_commits import Request, check_revisions, hub_reads, is_repository, look_up, parse_revisions
from t5suite.data.corpora.sources import hub_arguments, is_hub_name
from t5suite.data.rows.hub_rows import HubRows
from t5suite.data.rows.sources import DataOptions, source_name
from t5suite.models.adapter_files import find_base, is_adapter, read_adapter_config
from t5suite.models.presets import PRESETS
from t5suite.tasks.registry import Task
from t5suite.training.processes.ranks import Ranks

logger = logging.getLogger(__name__)

MODEL_FLAG = "--model_revision"
DATA_FLAG = "--data_revision"


def begin_hub_reads(model_revision: str | None, data_revision: str | None = None) -> None:
    """Notes the revisions that flags name repository by repository, before anything is read.

    Raises:
      ConfigError: a list of revisions that is not one.
    """
    for kind, text, flag in (("model", model_revision, MODEL_FLAG), ("dataset", data_revision, DATA_FLAG)):
        table = parse_revisions(text, flag)
        if isinstance(table, dict):
            for repository, revision in table.items():
                hub_reads().revisions[kind, repository] = revision


def settle_hub_reads(requests: Iterable[Request], earlier: Mapping | None) -> None:
    """Looks up the commit of every request, once for all ranks, before models and rows are loaded.

    What cannot be looked up for another reason than a failure of the hub is left to the code that loads it.

    Args:
      earlier: what the manifest of a run that resumes says of the hub (`Run.hub_before`): its commits are read again.
    """
    reads = hub_reads()
    reads.continue_from(earlier or {})
    requests = list(dict.fromkeys(requests))
    if requests:
        reads.commits.update(Ranks.of_process().together(_commits_of, requests))


def _commits_of(requests: Sequence[Request]) -> dict[Request, str]:
    commits = {}
    for request in requests:
        try:
            commit = look_up(request)
        except UserError:
            raise
        except (OSError, ValueError) as error:
            logger.info("%s: its commit could not be looked up (%s)", request.repository, str(error)[:300])
            continue
        if commit is not None:
            commits[request] = commit
    return commits


def model_requests(model_args, teacher: str | None = None) -> list[Request]:
    """The models of the hub that a run reads, with the revisions that `--model_revision` gives them.

    One revision is that of the model and of its tokenizer; a list also names those of a teacher and of the base of an
    adapter in a local folder.

    Raises:
      ConfigError: a revision of a model that the run does not read, or one commit for several of them.
    """
    flag_names = [model_args.model_name_or_path, model_args.tokenizer_name]
    if model_args.config_name not in (*PRESETS, *CONFIG_MAPPING_NAMES):
        flag_names.append(model_args.config_name)
    models = [name for name in dict.fromkeys(flag_names) if is_repository(name)]
    further_models = [name for name in (teacher, _adapter_base(model_args)) if is_repository(name)]
    all_models = [*models, *further_models]
    is_list = isinstance(parse_revisions(model_args.model_revision, MODEL_FLAG), dict)
    revisions = check_revisions(model_args.model_revision, MODEL_FLAG, all_models if is_list else models)
    return [Request("model", name, revisions.get(name)) for name in all_models]


def _adapter_base(model_args) -> str | None:
    """The name of the model below the adapter that `--model_name_or_path` names, if it names one."""
    if model_args.adapter_base is not None or not is_adapter(model_args.model_name_or_path):
        return model_args.adapter_base
    folder = Path(model_args.model_name_or_path)
    return find_base(folder, read_adapter_config(folder).base_model_name_or_path)


def data_requests(plan, data_args, roles: Sequence[str]) -> list[Request]:
    """The data sets of the hub that a fine-tuning run reads, with the revisions that `--data_revision` gives them.

    Args:
      roles: the splits that the run reads: train, validation, test.

    Raises:
      ConfigError: a revision of a data set that the run does not read, or one commit for several of them.
    """
    names = []
    for source in plan.sources.values():
        full_source = getattr(source, "source", source)  # a part of it may be held out
        if isinstance(full_source, HubRows):
            names.append(full_source.path)
    options = DataOptions(
        data_args.data_dir,
        data_args.train_file,
        data_args.validation_file,
        data_args.test_file,
        own_sources=plan.sources,
    )
    for task in plan.tasks:
        if reads_hub(task, roles, options):
            names.append(task.entry.get("hub_path"))
    names = [name for name in dict.fromkeys(names) if is_repository(name)]
    revisions = check_revisions(data_args.data_revision, DATA_FLAG, names)
    return [Request("dataset", name, revisions.get(name)) for name in names]


def reads_hub(task: Task, roles: Sequence[str], options: DataOptions) -> bool:
    """Whether a split of these roles comes from the hub."""
    return any(task.splits(role) and source_name(task, role, options) == "hub" for role in roles)


def text_requests(texts: Iterable[str]) -> list[Request]:
    """The data sets of the hub among the texts of a pre-training run, with the revisions in their names."""
    arguments = [hub_arguments(text) for text in texts if is_hub_name(text)]
    requests = [Request("dataset", hub_names["path"], hub_names["revision"]) for hub_names in arguments]
    return [request for request in requests if is_repository(request.repository)]
