"""The operator's door: metrics, status, explanations, and the hand that drains and cordons."""
