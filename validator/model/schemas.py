"""The kinds that a runbook may name: their models, and the numbers that criteria may use.

The model of a kind is imported when something asks for it: a runbook names a few kinds, and each takes its time to
load. `validator.kinds.registry` adds kinds from outside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any, Union, get_args

from pydantic import AfterValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter
from pydantic_core import PydanticKnownError, core_schema

from validator.model.catalogue import METRICS, Scalar, is_open_scalar
from validator.model.phases import PhaseBase, ProcessPhase

_MODELS = {
    "preflight": "phases.PreflightPhase",
    "command": "phases.CommandPhase",
    "pytest": "phases.PytestPhase",
    "storage": "machine_phases.StoragePhase",
    "network": "machine_phases.NetworkPhase",
    "tools": "machine_phases.ToolsPhase",
    "burnin": "machine_phases.BurninPhase",
    "train": "training_phases.TrainPhase",
    "sweep": "arms_phases.SweepPhase",
    "ab": "arms_phases.AbPhase",
    "audit": "traced_phases.AuditPhase",
    "profile": "traced_phases.ProfilePhase",
    "soak": "training_phases.SoakPhase",
    "settings": "repeated_phases.SettingsPhase",
    "data": "training_phases.DataPhase",
    "determinism": "repeated_phases.DeterminismPhase",
}
"""Kind of phase to the module of `validator.model` and the class that is its model, in the order of the reference."""


class _Schemas(Mapping[str, type[PhaseBase]]):
    """The models by kind. Names are known without their models; iterating over the models imports all."""

    def __init__(self) -> None:
        self._models: dict[str, type[PhaseBase] | None] = dict.fromkeys(_MODELS)

    def __getitem__(self, kind: str) -> type[PhaseBase]:
        model = self._models[kind]
        if model is None:
            module, _, name = _MODELS[kind].partition(".")
            model = self._models[kind] = getattr(import_module(f"validator.model.{module}"), name)
            assert _kind_of(model) == kind, f"{model.__name__} is no model of {kind}"
            SCALARS.add(model)
        return model

    def __contains__(self, kind: object) -> bool:
        return kind in self._models

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    def add(self, kind: str, model: type[PhaseBase]) -> None:
        """A kind from outside."""
        self._models[kind] = model


class _Scalars(Mapping[str, Scalar]):
    """The numbers by name. Most are those of kinds that are in use; another name imports all models.

    The first part of such a name is never a series, so that a criterion on a series asks for no model.
    """

    def __init__(self) -> None:
        self._known: dict[str, Scalar] = {}
        self._complete = False

    def add(self, model: type[PhaseBase]) -> None:
        """The numbers of a kind."""
        self._known.update(model.known_scalars())

    def __getitem__(self, name: str) -> Scalar:
        if name not in self._known and name.partition(".")[0] not in METRICS and not is_open_scalar(name):
            self.complete()
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        self.complete()
        return iter(self._known)

    def __len__(self) -> int:
        self.complete()
        return len(self._known)

    def complete(self) -> None:
        """The numbers of every kind, in the order of the reference: what every process has comes first."""
        if self._complete:
            return
        self._complete = True
        models = list(SCHEMAS.values())
        self._known.clear()
        for model in sorted(models, key=lambda one: not issubclass(one, ProcessPhase)):
            self.add(model)


SCHEMAS = _Schemas()
"""Kind of phase to its model, in the order of the reference."""

SCALARS = _Scalars()
"""Every number that some kind of phase knows once per run."""


class UnknownKind(ValueError):
    """A kind of phase that nothing declares; the message names those that are."""

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"{kind!r} is no kind of phase; known: {', '.join(SCHEMAS)}. A kind from outside is found in a folder that "
            "VALIDATOR_PLUGINS names"
        )


def _kind_of(model: type[PhaseBase]) -> str:
    """The only literal of its key `kind`."""
    return str(get_args(model.model_fields["kind"].annotation)[0])


def declare(schema: type[PhaseBase]) -> None:
    """Add the model of a kind from outside, which says its kind as the only literal of `kind`.

    Raises:
        ValueError: when there is such a kind already, or another model explains the same number.
    """
    kind = _kind_of(schema)
    if kind in SCHEMAS:
        raise ValueError(f"{schema.__name__} declares the kind {kind}, which {SCHEMAS[kind].__name__} declares")
    SCALARS.complete()
    for name, scalar in schema.known_scalars().items():
        if SCALARS.get(name, scalar) != scalar:
            raise ValueError(f"{schema.__name__} declares {name}, which another kind of phase declares differently")
    SCHEMAS.add(kind, schema)
    SCALARS.add(schema)


def schema_of(kind: str) -> type[PhaseBase]:
    """The model of a kind.

    Raises:
        UnknownKind: when nothing declares it.
    """
    if kind not in SCHEMAS:
        raise UnknownKind(kind)
    return SCHEMAS[kind]


def reported(kind: str) -> type[PhaseBase]:
    """The model of a kind that a report names; what every phase has where nothing declares it here."""
    return SCHEMAS.get(kind, PhaseBase)


def _known(kind: str) -> str:
    if kind not in SCHEMAS:
        raise UnknownKind(kind)
    return kind


KindName = Annotated[str, AfterValidator(_known)]
"""A kind of phase by its name, of those that are declared when it is read."""


class _ByKind:
    """Reads a phase with the model that its key `kind` names, of those that are declared by then.

    Each model is built when a phase of its kind is read: most runbooks have few kinds, and a union of all
    is slow to build.
    """

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> Any:
        return core_schema.no_info_plain_validator_function(_read)

    def __get_pydantic_json_schema__(self, schema: Any, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        models: Any = Union[tuple(SCHEMAS.values())]  # noqa: UP007 - a union of what a table holds
        return handler(TypeAdapter(Annotated[models, Field(discriminator="kind")]).core_schema)


def _read(value: Any) -> PhaseBase:
    """A phase; the errors are those of a union whose discriminator is `kind`."""
    given: Mapping[Any, Any]
    if isinstance(value, PhaseBase):
        given = {"kind": value.kind} if hasattr(value, "kind") else {}
    elif isinstance(value, Mapping):
        given = value
    else:
        raise PydanticKnownError("model_attributes_type")
    if "kind" not in given:
        raise PydanticKnownError("union_tag_not_found", {"discriminator": "'kind'"})
    kind: Any = given["kind"]
    if not isinstance(kind, str) or kind not in SCHEMAS:
        known = ", ".join(repr(one) for one in SCHEMAS)
        context = {"discriminator": "'kind'", "tag": str(kind), "expected_tags": known}
        raise PydanticKnownError("union_tag_invalid", context)
    return SCHEMAS[kind].model_validate(value)


Phase = Annotated[PhaseBase, _ByKind()]
