"""Talking to PostgreSQL. Python workers import it: it must load little."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from tidegate.errors import RunError, SystemAway, TidegateError

# What waiting does not mend: who may log in, and what is there.
_REFUSED = ("28", "3D", "42", "0A", "53300")
# What passes by itself: somebody else was at it.
_PASSING = ("40001", "40P01", "55P03", "57P01", "57P02", "57P03", "53")


@dataclass(frozen=True)
class Login:
    """Where a server is and who asks; printing it shows no password."""

    host: str
    port: int
    database: str
    user: str | None
    password: str | None = field(repr=False)
    sslmode: str
    sslrootcert: str | None
    timeout_s: int

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Login:
        return cls(
            options["host"],
            options["port"],
            options["database"],
            options["user"],
            options["password"],
            options["sslmode"],
            options["sslrootcert"],
            max(options["connect_timeout"] // 1_000_000, 2),
        )

    @property
    def shown(self) -> str:
        return f"{self.host}:{self.port}/{self.database}"

    def connect(self, who: str) -> Any:
        """A connection that commits every statement, unless a transaction is begun."""
        psycopg = driver()
        given = {
            "host": self.host,
            "port": self.port,
            "dbname": self.database,
            "user": self.user,
            "password": self.password,
            "sslmode": self.sslmode,
            "sslrootcert": self.sslrootcert,
            "connect_timeout": self.timeout_s,
            "application_name": "tidegate",
            "keepalives_idle": 30,
        }
        known = {name: value for name, value in given.items() if value is not None}
        with told(f"{who}: the database {self.shown}"):
            return psycopg.connect(**known, autocommit=True)


def driver() -> Any:
    """psycopg, which not everybody needs."""
    try:
        import psycopg
    except ImportError:
        raise RunError(
            "TG-504",
            "the connector postgres needs psycopg, which is not installed",
            hint="pip install 'tidegate[postgres]'",
        ) from None
    return psycopg


@contextmanager
def told(what: str) -> Iterator[None]:
    """Errors of the database as ours: what may pass, and what somebody must mend."""
    psycopg = driver()
    try:
        yield
    except psycopg.Error as error:
        raise _of(error, what) from None


def _of(error: Any, what: str) -> TidegateError:
    diagnosed = getattr(error, "diag", None)
    reason = (diagnosed.message_primary if diagnosed is not None else None) or _first(error)
    if diagnosed is not None and diagnosed.message_detail:
        reason += f" ({diagnosed.message_detail.rstrip('.')})"
    state = error.sqlstate or ""
    # While it starts or stops it refuses connections without a state that psycopg would know.
    refused = state.startswith(_REFUSED) or _is_refusal(reason)
    passing = state.startswith(_PASSING) and state != "53300"
    lost = isinstance(error, driver().OperationalError) and not refused
    if passing or lost or isinstance(error, driver().InterfaceError):
        return SystemAway(f"{what}: {reason}", "it is asked again until it answers.")
    if state.startswith("28") or _is_login(reason):
        hint = "correct the options user and password."
        return RunError("TG-512", f"{what}: {reason}", hint=hint)
    return RunError("TG-504", f"{what}: {reason}", hint=_hint(state, reason))


def _first(error: Exception) -> str:
    """What happened, without where: that is said already."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0].rpartition(" failed: ")[2] if lines else type(error).__name__


def _is_refusal(reason: str) -> bool:
    """Whether a connection that failed will fail again: psycopg tells no state of these."""
    missing = 'database "' in reason and "does not exist" in reason
    return missing or "permission denied" in reason or _is_login(reason)


def _is_login(reason: str) -> bool:
    """Whether somebody is not let in."""
    words = (
        *("authentication failed", "no password supplied", "no pg_hba.conf entry"),
        "is not permitted to log in",
    )
    unknown = 'role "' in reason and "does not exist" in reason
    return unknown or any(word in reason for word in words)


def _hint(state: str, reason: str) -> str:
    if state == "42501" or "permission denied" in reason:
        return "GRANT the user the right to connect, read, write and create tables there."
    if state == "3D000" or 'database "' in reason:
        return "correct the option database."
    if state.startswith("23"):
        return "rows break a rule of the table: leave them out of the stream, or drop the rule."
    if state.startswith("22"):
        return "leave such values out of the stream, or change the type of the column."
    return "mend the table and start again: nothing is lost."


# By login and who asks: several may be at it in one process at the same time.
_kept: dict[tuple[Login, str], Any] = {}


def kept_connection(login: Login, who: str) -> Any:
    """The connection of one who asks in this process, made anew where it was lost; nothing is begun
    on it."""
    key = (login, who)
    known = _kept.pop(key, None)
    if known is not None:
        with suppress(driver().Error):
            known.rollback()
            known.execute("SELECT 1")
            _kept[key] = known
            return known
        with suppress(Exception):
            known.close()
    _kept[key] = login.connect(who)
    return _kept[key]
