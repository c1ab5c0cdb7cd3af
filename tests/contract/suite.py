"""The public suite, `holdfast.testing.contract`, on the engines that `conftest.py` names.

One example on one engine: `pytest "tests/contract/suite.py::test_lanes::test_a_lane_runs_in_order_of_arrival[memory]"`.
"""
