"""Weights of the score's terms: plain numbers, written by ``make train``."""

COEFFICIENTS = {
    "one": 0.65,
    "reach": 0.8,
    "excess": 4.5,
    "deficit": 6.0,
    "stall": 0.7,
    "calm": 0.25,
    "returned": 1.0,
    "young": 0.35,
    "urgent": 0.4,
}
