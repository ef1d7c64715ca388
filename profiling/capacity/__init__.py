"""`capacity`: find how many layers fit on a device, and how a larger stack splits over several."""
