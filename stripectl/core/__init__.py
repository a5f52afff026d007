"""A question and how it is computed: workloads, plans, layouts, protocols of schemes and kernels. Pure values."""
