"""An answer that a node works out once and keeps."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property as once
else:

    class once:  # noqa: N801
        """functools.cached_property as it is since Python 3.12: without locks.

        With a lock for each question two threads could wait for each other forever, as nodes ask
        the nodes below them.
        """

        def __init__(self, ask: Callable[[Any], Any]) -> None:
            self.ask = ask
            self.__doc__ = ask.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self.name = name

        def __get__(self, node: Any, owner: type | None = None) -> Any:
            if node is None:
                return self
            answer = self.ask(node)
            node.__dict__[self.name] = answer
            return answer


__all__ = ["once"]
