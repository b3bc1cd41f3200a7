from comms import compression_cost
from comms.compression_cost import Gain


def test_the_verdict_says_when_not_to_compress():
    faster = Gain(dense=0.15, compressed=0.016, codec=0.001)
    assert compression_cost.verdict(faster).startswith("9.38x faster: 150.00 ms dense, 16.00 ms")
    slower = Gain(dense=0.0015, compressed=0.0101, codec=0.01)
    assert compression_cost.verdict(slower).startswith("do not compress")
