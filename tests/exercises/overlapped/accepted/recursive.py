def overlapped(backward, sending):
    """The first layer comes last: what the others have sent by then, or the pass, whichever is later."""
    if not backward:
        return 0
    return max(overlapped(backward[1:], sending[1:]), sum(backward)) + sending[0]
