"""Advice on a waiting rule and on compression, from measured durations to a page."""
