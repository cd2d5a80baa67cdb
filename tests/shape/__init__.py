"""The ruler of the code base: how it measures, and what the figures may be (``make shape``)."""
