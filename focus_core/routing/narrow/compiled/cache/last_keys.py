"""The last key of a full page, which has no row: its logit, and what its weight makes of those of the others.

With S the sum of the keys of a page, the last of its P keys is S - (k_1 + ... + k_(P-1)), so its logit is that of S
less those of the others. With weights w_j, and V the sum of the values,

```
sum_j w_j v_j = w_P V + sum_(j < P) (w_j - w_P) v_j
```
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def last_logits(
    read: np.ndarray,
    sizes: np.ndarray,
    full: int,
    sum_logits: np.ndarray,
    logits: np.ndarray,
    summaries: np.ndarray,
) -> None:
    """Write the logits of the last keys of full pages that are read in the places of their summaries.

    Args:
        read: numbers of the pages that are read.
        sizes: (R,) float32 keys of each page.
        full: keys of a page whose last one has no row; 0 where all have one.
        sum_logits: (R,) float32 or more, dot products with the sums of pages.
        logits: (n,) float32 of the rows of these pages, page after page.
        summaries: (R,), written.
    """
    place = 0
    for page in read:
        rows = int(sizes[page])
        if rows == full:
            rows -= 1
            last = sum_logits[page]
            for row in range(rows):
                last -= logits[place + row]
            summaries[page] = last
        place += rows


@njit(nogil=True, cache=True)
def last_weights(read: np.ndarray, sizes: np.ndarray, full: int, weights: np.ndarray, summaries: np.ndarray) -> None:
    """Turn weights of summaries and of rows into those of sums and of rows beside them.

    Args:
        read: numbers of the pages that are read.
        sizes: (R,) float32 keys of each page.
        full: keys of a page whose last one has no row; 0 where all have one.
        weights: (n,) float32 of the rows of these pages, page after page; written.
        summaries: (R,) float32, weights of means, and of the last keys of full pages that are read; written.
    """
    for page in range(len(sizes)):
        summaries[page] /= sizes[page]
    place = 0
    for page in read:
        rows = int(sizes[page])
        if rows == full:
            rows -= 1
            summaries[page] *= np.float32(full)
            for row in range(rows):
                weights[place + row] -= summaries[page]
        place += rows
