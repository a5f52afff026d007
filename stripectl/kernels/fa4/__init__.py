"""fa4: FlashAttention-4 on Hopper and Blackwell GPUs, table only."""

from stripectl.core.table_only import table_only_kernel
from stripectl.kernels.cudnn import about as cudnn

about = table_only_kernel("fa4", "https://github.com/Dao-AILab/flash-attention", like=cudnn)
