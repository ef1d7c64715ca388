"""`capacity`: how many layers fit on a device, and how a stack too large for one splits over several."""
