"""Exercise of lesson 7: the order of 1F1B. `python lessons/check.py 7` checks it."""


def order_of_1f1b(part: int, parts: int, micro_batches: int) -> list[tuple[str, int]]:
    """Returns the order of a part's work in 1F1B: one forward, one backward (Narayanan et al. 2019, PipeDream).

    Lesson 7 sends all micro-batches forward before the first goes backward, so each part keeps the tensors of all
    micro-batches. In 1F1B a part keeps as few as it can without waiting longer. Part s of S begins with the forwards of
    S - s micro-batches, or of all if there are fewer. They keep it busy until the first micro-batch comes back. Then it
    alternates: one backward, one forward, until no forward is left. The remaining backwards follow.

    Both forwards and backwards are done in the order of the micro-batches.

    Args:
      part: the number of the part, s, from 0; part 0 gets the batch.
      parts: the number of parts, S.
      micro_batches: the number of micro-batches, M, at least 1.

    Returns:
      A list of the 2 M pairs ('forward', m) and ('backward', m), with m from 0 to M - 1. For example, of two
      parts with three micro-batches, the last never keeps more than one, and the first keeps up to two:

        order_of_1f1b(1, 2, 3) -> [('forward', 0), ('backward', 0), ('forward', 1), ('backward', 1),
                                   ('forward', 2), ('backward', 2)]
        order_of_1f1b(0, 2, 3) -> [('forward', 0), ('forward', 1), ('backward', 0), ('forward', 2),
                                   ('backward', 1), ('backward', 2)]
    """
    raise NotImplementedError
