# refused: for backward [10, 10, 10] and sending [5, 5, 40] it returns 50; 60 is right
def overlapped(backward, sending):
    """As if the link could carry all messages at once."""
    now, ends = 0, [0]
    for b, c in zip(reversed(backward), reversed(sending)):
        now += b
        ends.append(now + c)
    return max(ends)
