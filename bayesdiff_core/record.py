"""Records that travel between nodes."""

import dataclasses


class Record:
    """Base of frozen dataclasses that are handled like a NamedTuple and are no tuple: nodes of
    other packs that batch, index or loop over anything take tuples apart. Two are equal only if
    they are the same one, as tensors have no plain answer to that."""

    def _replace(self, **changes):
        return dataclasses.replace(self, **changes)

    def _asdict(self) -> dict:
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
