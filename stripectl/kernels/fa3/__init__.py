"""fa3: FlashAttention-3 on Hopper GPUs, table only."""

from stripectl.core.table_only import table_only_kernel
from stripectl.kernels.cudnn import about as cudnn

about = table_only_kernel("fa3", "https://arxiv.org/abs/2407.08608", like=cudnn)
