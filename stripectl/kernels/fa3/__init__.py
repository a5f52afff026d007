"""fa3: FlashAttention-3 on Hopper GPUs, table only."""

from stripectl.core.table_only import table_only
from stripectl.kernels.cudnn import about as cudnn

about = table_only("fa3", "https://arxiv.org/abs/2407.08608", like=cudnn)
