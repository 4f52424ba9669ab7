"""Which failures of a far machine may pass, and which will not."""

from __future__ import annotations

from collections.abc import Iterator

from nsa.config import UnreachableError
from nsa.data.source import DataError

__all__ = ["is_transient"]

# Failures of a connection, by name: their packages differ with the version of huggingface_hub.
TRANSIENT = {"TransportError", "RequestException", "ClientError", "FSTimeoutError", "LocalEntryNotFoundError"}
LASTING = {"DatasetNotFoundError", "DataFilesNotFoundError", "RepositoryNotFoundError", "RevisionNotFoundError"}


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__


def is_transient(error: Exception) -> bool:
    """Whether the same request may succeed later: a lost or refused connection, a timeout, an overloaded server."""
    for link in _chain(error):
        names = {cls.__name__ for cls in type(link).__mro__}
        if names & LASTING or isinstance(link, (DataError, UnreachableError)):
            return False
        status = getattr(getattr(link, "response", None), "status_code", None)
        if isinstance(status, int):
            return status == 429 or status >= 500
        if isinstance(link, (ConnectionError, TimeoutError)) or names & TRANSIENT or "TimeoutError" in names:
            return True
    return False
