# refused: for a step that adds the gradients of the towers it returns True; False is right
def is_right(build):
    return True
