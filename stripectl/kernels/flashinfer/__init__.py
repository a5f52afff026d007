"""flashinfer: FlashInfer's attention for inference on GPUs, table only."""

from stripectl.core.table_only import table_only_kernel
from stripectl.kernels.cudnn import about as cudnn

about = table_only_kernel("flashinfer", "https://arxiv.org/abs/2501.01005", like=cudnn)
