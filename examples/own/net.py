"""A model of flax.nnx."""

from flax import nnx


class Net(nnx.Module):
    def __init__(self, classes: int, width: int = 16, *, rngs: nnx.Rngs):
        self.hidden = nnx.Linear(64, width, rngs=rngs)
        self.last = nnx.Linear(width, classes, rngs=rngs)

    def __call__(self, images):
        return self.last(nnx.relu(self.hidden(images.reshape(len(images), -1))))
