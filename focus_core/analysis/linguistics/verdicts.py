"""The outcome of an alignment in sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from focus_core.analysis.linguistics.alignment import BALANCED, KMEANS, MIN_WORDS, UNTRAINED, Alignment, LayerAlignment
from focus_core.analysis.linguistics.explain import Explained
from focus_core.evaluation.compare import Difference

TAGS = {"upos": "universal parts of speech", "coarse": "five coarse word classes"}


def verdicts(found: Alignment) -> list[str]:
    """One sentence for each question, the answer to the main one first.

    A layer is beyond shuffles or a reference grouping if its test is significant at a false discovery rate of 5% over
    layers. The comparison with k-means is by 95% intervals, layer by layer.
    """
    best = max(found.layers, key=lambda layer: layer.measures.ami)
    tags = TAGS[found.tag_set]
    if found.descriptive:
        return [
            f"Only described, not tested: {found.num_words} words are fewer than the {MIN_WORDS} that intervals and "
            f"tests need. The highest AMI with {tags} is {best.measures.ami:.2f}, in layer {best.layer}."
        ]
    total = len(found.layers)
    chance, balance, identity, context = (
        _layers(found, test)
        for test in (
            lambda layer: layer.beyond_chance,
            lambda layer: layer.beyond_balance,
            lambda layer: layer.beyond_identity,
            lambda layer: layer.beyond_context,
        )
    )
    assert best.interval is not None
    sentences = [
        f"Groups follow {tags} beyond chance in {_count(chance, total)}, and beyond token identity in "
        f"{_count(identity)}.",
        f"The highest AMI is {best.measures.ami:.2f} [{best.interval.low:.2f}, {best.interval.high:.2f}], in layer "
        f"{best.layer}. {_ceiling(found, best.measures.ami)}.",
        f"Beyond chance (groups shuffled over all words): {_named(chance, total)}.",
    ]
    names = [name for name in BALANCED if name in best.references]
    also = "" if UNTRAINED in names else ", untrained routers not computed"
    sentences.append(f"Beyond balance ({', '.join(names)}{also}): {_named(balance, total)}.")
    sentences += [
        f"Beyond token identity (each spelling's usual group, learnt elsewhere): {_named(identity, total)}.",
        f"Beyond spelling in context (tags shuffled within each spelling): "
        f"{_named(context, total)}{_largest_context(found)}.",
    ]
    if KMEANS in best.references:
        better = _layers(found, lambda layer: layer.gaps is not None and layer.gaps[KMEANS].low > 0)
        worse = _layers(found, lambda layer: layer.gaps is not None and layer.gaps[KMEANS].high < 0)
        sentences.append(
            f"Against balanced k-means of the same hidden states the routers align better in {len(better)} and worse "
            f"in {len(worse)} of {total} layers, not corrected over layers."
        )
    return sentences


def layer_sentence(found: Alignment, row: int) -> str:
    """The answer for one layer: its AMI, and the references it is beyond or not beyond."""
    layer = found.layers[row]
    if found.descriptive:
        return f"In layer {layer.layer} the AMI is {layer.measures.ami:.2f}; the text is too short to say more."
    assert layer.interval is not None
    beaten = [
        name
        for name, yes in (
            ("chance", layer.beyond_chance),
            ("balance", layer.beyond_balance),
            ("token identity", layer.beyond_identity),
            ("spelling in context", layer.beyond_context),
        )
        if yes
    ]
    missed = [name for name in ("chance", "balance", "token identity", "spelling in context") if name not in beaten]
    text = f"Layer {layer.layer}: AMI {layer.measures.ami:.2f} [{layer.interval.low:.2f}, {layer.interval.high:.2f}]"
    if beaten:
        text += f", beyond {_and(beaten)}"
    if missed:
        text += f", {'but ' if beaten else ''}not beyond {_or(missed)}"
    if layer.measures.ami > found.ceiling:
        return f"{text}. {_ceiling(found, layer.measures.ami)}."
    return (
        f"{text}; {layer.measures.ami / found.ceiling:.0%} of the AMI that {found.num_groups} equal groups could reach."
    )


def _ceiling(found: Alignment, highest: float) -> str:
    """What equal groups could reach at most, and why an AMI above it is no mistake."""
    above = "; these are not equal, so they may exceed it" if highest > found.ceiling else ""
    return f"At most {found.ceiling:.2f} is possible with {found.num_groups} equal groups{above}"


def explained_sentence(found: Explained) -> str:
    """The answer for one layer: the feature that explains most, all features, and what the first adds to the others."""
    if found.all_features.mark:
        first = found.features[0]
        return (
            f"Too few sentences to be sure: {first.feature} explains {_percent(first.alone)} of which group a word is "
            f"in, and all features together {_percent(found.all_features)}, over {found.blocks} stretches of sentences."
        )
    known = [each for each in found.features if each.alone.established]
    if not known:
        return "Nothing here explains which group a word is in: no share is above chance on words held out."
    first = known[0]
    more = f"All {len(found.features)} features together explain {_percent(found.all_features)}."
    if not found.all_features.established:
        more = "All features together are not established."
    own = sorted((each for each in found.features if each.unique.established), key=lambda each: -each.unique.difference)
    added = "No feature adds a share of its own to the others."
    if own:
        added = f"{_capital(own[0].feature)} adds most to all others: {_percent(own[0].unique)}."
    return (
        f"{_capital(first.feature)} explains {_percent(first.alone)} of which group a word is in, on words held out. "
        f"{more} {added}"
    )


def explained_verdicts(found: Sequence[Explained]) -> list[str]:
    """One sentence on all features in all layers, and one for each feature that explains most somewhere."""
    most, least = (choose(found, key=lambda each: each.all_features.difference) for choose in (max, min))
    sentences = [
        f"All features together explain {_percent(least.all_features)} of the groups of words held out in layer "
        f"{least.layer} and {_percent(most.all_features)} in layer {most.layer}."
    ]
    best: dict[str, list[int]] = {}
    for each in found:
        first = each.features[0]
        best.setdefault(first.feature if first.alone.established else "", []).append(each.layer)
    for name in sorted(best, key=lambda name: (name == "", -len(best[name]))):
        layers = _named(sorted(best[name]), len(found))
        few = _few(found[0]) if not name else ""
        sentences.append(
            f"{_capital(name)} explains most in {layers}."
            if name
            else f"No feature has an established share in {layers}{few}."
        )
    return sentences


def _few(found: Explained) -> str:
    return f" ({found.all_features.mark})" if found.all_features.mark else ""


def _percent(share: Difference) -> str:
    if share.low is None or share.high is None:
        return f"{share.difference:.0%}"
    return f"{share.difference:.0%} [{share.low:.0%}, {share.high:.0%}]"


def _capital(name: str) -> str:
    return name[:1].upper() + name[1:]


def _layers(found: Alignment, test: Callable[[LayerAlignment], bool]) -> list[int]:
    return [layer.layer for layer in found.layers if test(layer)]


def _count(layers: Sequence[int], total: int | None = None) -> str:
    if total is None:
        return str(len(layers)) if layers else "none"
    return f"all {total} layers" if len(layers) == total else f"{len(layers)} of {total} layers"


def _named(layers: Sequence[int], total: int) -> str:
    if not layers:
        return "no layer"
    if len(layers) == total:
        return f"all {total} layers"
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    spans = [f"{run[0]}" if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]
    return f"{len(layers)} of {total} layers ({', '.join(spans)})"


def _largest_context(found: Alignment) -> str:
    gaps = [
        (layer.measures.ami - layer.within_type.mean, layer.layer)
        for layer in found.layers
        if layer.beyond_context and layer.within_type is not None
    ]
    if not gaps:
        return ""
    gap, layer = max(gaps)
    return f", by {gap:.3f} AMI at most (layer {layer})"


def _and(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _or(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
