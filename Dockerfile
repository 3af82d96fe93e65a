# One image for every service of docker-compose.yaml: Airflow, Spark Connect and the S3 server.
FROM python:3.11-slim-bookworm
RUN apt-get update \
    && apt-get install --yes --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/sluice
COPY requirements.txt overrides.txt ./
RUN pip install --no-cache-dir uv && uv pip install --system --compile-bytecode --override overrides.txt -r requirements.txt
# As a team installs it: the distribution has sluice and sluice_airflow, and registers its plugin.
COPY pyproject.toml README.md LICENSE ./
COPY include/sluice include/sluice
COPY plugins/sluice_airflow plugins/sluice_airflow
RUN uv pip install --system --no-deps . && rm -rf include plugins build
# As a team's project has it.
COPY include/pipelines include/pipelines
COPY dags dags
COPY spark_jobs spark_jobs
ENV SLUICE_PIPELINES=/opt/sluice/include/pipelines SLUICE_DAGS="!nexmark_* !auctions_submitted"
