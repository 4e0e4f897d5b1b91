"""The last key of a page, which has no row: its logit, and what its weight makes of those of the others.

With S the sum of the n keys of a page, the last is S - (k_1 + ... + k_(n-1)), so its logit is that of S less those of
the others. With weights w_j, and V the sum of the values,

```
sum_j w_j v_j = w_n V + sum_(j < n) (w_j - w_n) v_j
```
"""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True)
def last_logits(
    read: np.ndarray, sizes: np.ndarray, sum_logits: np.ndarray, logits: np.ndarray, summaries: np.ndarray
) -> None:
    """Write the logits of the last keys of pages that are read in the places of their summaries.

    Args:
        read: numbers of the pages that are read.
        sizes: (R,) float32 keys of each page.
        sum_logits: (R,) float32 or more, dot products with the sums of pages.
        logits: (n,) float32 of the rows of these pages, page after page.
        summaries: (R,), written.
    """
    place = 0
    for page in read:
        last, stop = sum_logits[page], place + int(sizes[page]) - 1
        for row in range(place, stop):
            last -= logits[row]
        summaries[page], place = last, stop


@njit(nogil=True, cache=True)
def last_weights(read: np.ndarray, sizes: np.ndarray, weights: np.ndarray, summaries: np.ndarray) -> None:
    """Turn weights of the keys of pages that are read into those of rows, with the sums beside them.

    Args:
        read: numbers of the pages that are read.
        sizes: (R,) float32 keys of each page.
        weights: (n,) float32 of the rows of these pages, page after page; written.
        summaries: (R,) float32 or more, weights of the last keys over the sizes of their pages; those of sums are
            written.
    """
    place = 0
    for page in read:
        summaries[page] *= sizes[page]
        last, stop = summaries[page], place + int(sizes[page]) - 1
        for row in range(place, stop):
            weights[row] -= last
        place = stop
