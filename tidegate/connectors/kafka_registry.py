"""A schema registry: which schema a number stands for. Tasks import it: it must load little."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tidegate.errors import RunError, SystemAway, TidegateError

# How long the registry may take to answer.
_ANSWER_SECONDS = 10.0
_TYPE = "application/vnd.schemaregistry.v1+json"


@dataclass(frozen=True)
class Registry:
    """Where schemas are registered; goes to tasks, and never shows its password."""

    owner: str
    url: str
    username: str | None = None
    password: str | None = field(repr=False, default=None)

    @classmethod
    def of(cls, owner: str, options: Mapping[str, Any]) -> Registry | None:
        """The registry of a declared source or sink, if it has one."""
        url = options["registry_url"]
        if url is None:
            return None
        own = (options["registry_username"], options["registry_password"])
        return cls(owner, url.rstrip("/"), *own)

    def schema(self, number: int) -> str | None:
        """The schema of a number; None if there is none."""
        found = self._ask(f"/schemas/ids/{number}")
        if found is None:
            return None
        kind = found.get("schemaType") or "AVRO"
        if kind != "AVRO" or found.get("references"):
            why = "refers to others" if kind == "AVRO" else f"is of the type {kind}"
            raise RunError(
                "TG-504",
                f"{self.owner}: the schema {number} of the registry {self.url} {why}",
                hint="only Avro schemas that stand by themselves are read: use format = 'raw'.",
            )
        return str(found["schema"])

    def register(self, subject: str, schema: str) -> int:
        """The number of a schema, which gets one if it is new."""
        from urllib.parse import quote

        path = f"/subjects/{quote(subject, safe='')}/versions"
        found = self._ask(path, {"schema": schema})
        if found is None:
            raise self._odd("does not know how to register a schema")
        return int(found["id"])

    def _ask(self, path: str, given: Mapping[str, Any] | None = None) -> dict[str, Any] | None:
        """What it answers; None if it says that there is no such thing."""
        from http.client import HTTPException
        from urllib.error import HTTPError
        from urllib.request import Request, urlopen

        headers = {"Accept": _TYPE, "Content-Type": _TYPE}
        if self.username is not None:
            login = f"{self.username}:{self.password or ''}".encode()
            headers["Authorization"] = f"Basic {base64.b64encode(login).decode()}"
        body = json.dumps(given).encode() if given is not None else None
        try:
            with urlopen(
                Request(self.url + path, body, headers), timeout=_ANSWER_SECONDS
            ) as answer:
                found = json.load(answer)
        except HTTPError as error:
            with error:
                self._require_missing(error.code, error.read(2000))
                return None
        except (OSError, HTTPException) as error:
            raise self._away(str(getattr(error, "reason", error))) from None
        except ValueError:
            raise self._odd("answers something that is not JSON") from None
        if not isinstance(found, dict):
            raise self._odd("answers something that is not an object")
        return found

    def _require_missing(self, code: int, answer: bytes) -> None:
        """That there is no such thing is an answer; all else it refuses with is an error."""
        if code == 404:
            return
        if code in (401, 403):
            raise RunError(
                "TG-512",
                f"{self.owner} is not let in by the registry {self.url}",
                hint="check registry_username and registry_password.",
            )
        if code in (408, 429) or code >= 500:
            raise self._away(f"it answers with {code}")
        told = " ".join(answer.decode("utf-8", "replace").split())
        raise self._odd(f"refuses with {code}: {self._hidden(told)}")

    def _hidden(self, text: str) -> str:
        return text.replace(self.password, "***") if self.password else text

    def _away(self, why: str) -> SystemAway:
        return SystemAway(
            f"{self.owner} cannot reach the registry {self.url}: {self._hidden(why)}",
            "start the registry, or correct the option registry_url.",
        )

    def _odd(self, what: str) -> TidegateError:
        return RunError(
            "TG-504",
            f"{self.owner}: the registry {self.url} {what}",
            hint="check registry_url, and whether the schema fits those that the subject has.",
        )
