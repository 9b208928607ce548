"""A = sum u u^T of a zero-padded 3 x 3 convolution, exactly, without unfolding its windows.

The entry of A for window places i and j sums phi(q) phi(q + j - i)^T over the positions q that
place i visits. Those are all of the image, up to a row and a column at its border. So 13 lag
matrices (the other 12 are transposes) and the lags along four border lines give every entry, for a
sixth of the multiplications.
"""

import itertools

import torch
import torch.nn.functional as F

LAGS = [(0, 0), (0, 1), (0, 2), *((down, right) for down in (1, 2) for right in range(-2, 3))]
LINE_LAGS = [(0, 0), (0, 1), (0, 2)]
PLACES = list(itertools.product(range(3), repeat=2))  # in a window, as F.unfold orders them
FIRST, LAST = 0, -1
# Window place 0 lags one behind its center, so it never visits the last line; 2 misses the first.
MISSED = {0: LAST, 2: FIRST}


class WindowSums:
    def __init__(self, features: int):
        square = (features, features)
        self.lags = torch.zeros(len(LAGS), *square, dtype=torch.float64)
        self.rows = torch.zeros(2, len(LINE_LAGS), *square, dtype=torch.float64)  # first, last
        self.columns = torch.zeros_like(self.rows)
        self.corners = torch.zeros(2, 2, *square, dtype=torch.float64)
        self.sums = torch.zeros(features, len(PLACES), dtype=torch.float64)
        self.count = 0

    def add(self, phi: torch.Tensor) -> None:
        """phi: B x C x H x W, in the precision to multiply in."""
        image = phi.transpose(0, 1)  # C x B x H x W
        self.lags += _lags(image, LAGS)
        for end in (FIRST, LAST):
            self.rows[end] += _lags(image[..., end, None, :], LINE_LAGS)
            self.columns[end] += _lags(image[..., end, None].transpose(-1, -2), LINE_LAGS)
            for side in (FIRST, LAST):
                corner = image[..., end, side]
                self.corners[end, side] += (corner @ corner.T).to(self.corners)
        height, width = phi.shape[-2:]
        padded = F.pad(phi.sum(0), (1, 1, 1, 1))
        self.sums += torch.stack([padded[:, i:i + height, j:j + width].sum((1, 2))
                                  for i, j in PLACES], dim=1).to(self.sums)
        self.count += len(phi) * height * width

    def add_to(self, matrix: torch.Tensor) -> None:
        """Adds A to an inputs x inputs matrix; one more input than the windows hold is the bias."""
        features, places = self.sums.shape
        size = features * places
        windows = matrix[:size, :size].unflatten(1, (features, places)) \
            .unflatten(0, (features, places))
        for (i, first), (j, second) in itertools.product(enumerate(PLACES), repeat=2):
            windows[:, i, :, j] += self._between(first, second)
        if len(matrix) > size:
            matrix[-1, :-1] += self.sums.flatten()
            matrix[:-1, -1] += self.sums.flatten()
            matrix[-1, -1] += self.count

    def _between(self, first: tuple[int, int], second: tuple[int, int]) -> torch.Tensor:
        down, right = second[0] - first[0], second[1] - first[1]
        if (down, right) < (0, 0):
            return self._between(second, first).T
        total = self.lags[LAGS.index((down, right))]
        # A pair that is apart along an axis leaves the image before it misses a line of it.
        row = MISSED.get(first[0]) if down == 0 else None
        column = MISSED.get(first[1]) if right == 0 else None
        if row is not None:
            total = total - self.rows[row, right]
        if column is not None:
            total = total - self.columns[column, down]
        if row is not None and column is not None:
            total = total + self.corners[row, column]
        return total


def _lags(image: torch.Tensor, lags: list[tuple[int, int]]) -> torch.Tensor:
    """sum over q of image(q) image(q + lag)^T for an image C x B x H x W: lags x C x C.

    Behind each row and each image lie so many zeros that a lag is an offset in the flat image.
    """
    padded = F.pad(image, (0, 2, 0, max(down for down, _ in lags)))
    flat, stride = padded.flatten(1), padded.shape[-1]
    offsets = [down * stride + right for down, right in lags]
    return torch.stack([flat[:, :flat.shape[1] - offset] @ flat[:, offset:].T
                        for offset in offsets]).to("cpu", torch.float64)
