"""Methods of the protocol and their cells, and what identifies the routers among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from focus_core.errors import FocusError
from focus_core.frontier.texts import training_texts
from focus_core.models import LoadedModel
from focus_core.routing.attach import attach
from focus_core.routing.storage import routers_hash


@dataclass(frozen=True)
class Method:
    """One attention at one setting.

    Attributes:
        name: key of the method in points.
        kind: "untouched", "routers" or "baseline".
        routers: attached while it is measured; baselines may read their groups.
        top_k: k of routers; None as planned.
        share: of distant pairs, for a baseline whose share can be set, and for routers that read a share.
    """

    name: str
    kind: str
    routers: str | Path | None
    top_k: int | None = None
    share: float | None = None


@dataclass(frozen=True)
class Cell:
    """A method on one kind of text at one length."""

    method: Method
    text: str
    length: int

    @property
    def key(self) -> tuple[str, int | None, float | None, str, int]:
        """That of its `Point`."""
        return self.method.name, self.method.top_k, self.method.share, self.text, self.length


def routed_methods(
    loaded: LoadedModel, folders: Sequence[str | Path | None], top_ks: Sequence[int], shares: Sequence[float]
) -> tuple[list[Method], dict[str, Any]]:
    """The routers at each k, or share, and what identifies them by name; each is attached once to read it.

    Args:
        loaded: the model they belong to.
        folders: of the routers, or shipped names; None for those shipped for the model.
        top_ks: k of routers without a plan.
        shares: of routers that read a share.

    Raises:
        FocusError: routers that do not fit, or two folders of one name.
    """
    methods: list[Method] = []
    found: dict[str, Any] = {}
    for folder in folders:
        focus = attach(loaded, folder, untrained=False)
        try:
            name, config = focus.name, focus.config
            entry = {"hash": routers_hash(focus.routers), "router": config.router, "num_groups": config.num_groups}
        finally:
            focus.detach()
        if found.get(name, entry)["hash"] != entry["hash"]:
            raise FocusError(f"Two folders of routers are called {name}: rename one of them.")
        found[name] = entry | {"trained_on": training_texts(folder if folder is not None else name)}
        if config.read_share is not None:
            methods += [Method(name, "routers", folder, share=share) for share in shares]
        else:
            planned = config.one_top_k is None
            methods += [Method(name, "routers", folder, top_k) for top_k in ((None,) if planned else top_ks)]
    return methods, found
