"""A mistake to seed into the library, and the promise that it breaks."""

from dataclasses import dataclass

from tests.store.timed import timed_source

__all__ = ["MUTANTS", "Mutant", "mutant"]

MUTANTS: dict[str, "Mutant"] = {}


@dataclass(frozen=True)
class Mutant:
    """Texts to replace, each of which must occur once, and the promise that must then fail."""

    patches: tuple[tuple[str, str], ...]
    breaks: str

    def text(self) -> str:
        text = timed_source()
        for old, new in self.patches:
            assert text.count(old) == 1, f"expected once, found {text.count(old)} times: {old}"
            text = text.replace(old, new)
        return text


def mutant(name: str, breaks: str, *patches: tuple[str, str]) -> None:
    MUTANTS[name] = Mutant(patches, breaks)
