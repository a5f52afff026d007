"""The values of a layer that its backward pass can find by name, on the device or in the host's memory."""

from enum import StrEnum


class Kept(StrEnum):
    """A value of a layer, in the order in which the layer computes them: its input; queries, keys and values as
    attention gets them; the output of attention; the results of its projection and of feed-forward."""

    INPUTS = "inputs"
    QUERY = "query"
    KEY = "key"
    VALUE = "value"
    CONTEXT = "context"
    PROJECTION = "projection"
    FEED_FORWARD = "feed_forward"
