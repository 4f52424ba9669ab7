"""The kinds that a runbook may name: their models, and the numbers that criteria may use.

Every model of `phases` and `training_phases` that names its kind is one; `validator.kinds.registry` adds those from
outside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, TypeVar, Union, get_args

from pydantic import AfterValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter
from pydantic_core import PydanticKnownError, core_schema

from validator.model import training_phases  # noqa: F401 - its classes are declared below
from validator.model.catalogue import Scalar
from validator.model.phases import PhaseBase, ProcessPhase

T = TypeVar("T")

SCHEMAS: dict[str, type[PhaseBase]] = {}
"""Kind of phase to its model, in the order of the reference."""

SCALARS: dict[str, Scalar] = {}
"""Every number that some kind of phase knows once per run."""


class UnknownKind(ValueError):
    """A kind of phase that nothing declares; the message names those that are."""

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"{kind!r} is no kind of phase; known: {', '.join(SCHEMAS)}. A kind from outside is found in a folder that "
            "VALIDATOR_PLUGINS names"
        )


def declare(*schemas: type[PhaseBase]) -> None:
    """Add the models of kinds; each says its kind as the only literal of `kind`.

    Raises:
        ValueError: when there is such a kind already, or another model explains the same number.
    """
    for schema in schemas:
        (kind,) = get_args(schema.model_fields["kind"].annotation)
        if kind in SCHEMAS:
            raise ValueError(f"{schema.__name__} declares the kind {kind}, which {SCHEMAS[kind].__name__} declares")
        for name, scalar in schema.known_scalars().items():
            if SCALARS.get(name, scalar) != scalar:
                raise ValueError(f"{schema.__name__} declares {name}, which another kind of phase declares differently")
        SCHEMAS[kind] = schema
    # What every process has comes first in the reference.
    ordered = sorted(SCHEMAS.values(), key=lambda one: not issubclass(one, ProcessPhase))
    for schema in ordered:
        SCALARS.update(schema.known_scalars())


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
    schema_of(kind)
    return kind


KindName = Annotated[str, AfterValidator(_known)]
"""A kind of phase by its name, of those that are declared when it is read."""


def classes_below(base: type[T]) -> Iterator[type[T]]:
    """The classes that are based on `base`, in the order in which they were defined, each before those below it."""
    for one in base.__subclasses__():
        yield one
        yield from classes_below(one)


declare(*(model for model in classes_below(PhaseBase) if "kind" in model.model_fields))


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
