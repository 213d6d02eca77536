"""An eviction policy for kvtwin."""

from kvtwin_example_policy.second_chance_ends import SecondChanceEnds

__all__ = ["SecondChanceEnds"]
