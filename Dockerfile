# Two images from one build: `fabricd`, the daemon and its commands, and, with
# --target apps, the two small applications of deploy/compose.yaml.
#
#     docker build -t fabricd .
#     docker build -t fabricd-apps --target apps .
#
# `make image` builds both, and where no registry is reachable makes a stand-in
# for GO_IMAGE first. The classic builder and BuildKit both build it.
ARG GO_IMAGE=golang:1.26

FROM ${GO_IMAGE} AS build
LABEL org.fabricd.stage=build
WORKDIR /src
# How modules are found; `make image` passes on what this machine's go uses.
ARG GOPROXY GOSUMDB GONOSUMDB GOPRIVATE
# Modules change rarely: layers of their own, with what is compiled of them.
COPY go.mod go.sum ./
RUN go mod download
RUN CGO_ENABLED=0 go build -trimpath github.com/quic-go/quic-go github.com/hashicorp/memberlist github.com/libp2p/go-yamux/v5 \
    github.com/goccy/go-yaml github.com/rs/zerolog github.com/spf13/cobra go.etcd.io/bbolt
COPY . .
ARG VERSION=unknown
# The directories that volumes are mounted on. A new named volume takes over
# owner and mode from here, so that nobody needs root to prepare it.
RUN export CGO_ENABLED=0 && mkdir -p /out/fabricd /out/apps && \
    go build -trimpath -mod=readonly -ldflags "-s -w -X main.version=${VERSION}" -o /out/fabricd/ ./cmd/fabricd && \
    go build -trimpath -mod=readonly -ldflags "-s -w" -o /out/apps/ ./deploy/apps/... && \
    cp LICENSE /out/fabricd/ && cp LICENSE /out/apps/ && chmod 0644 /out/*/LICENSE && \
    mkdir -p /out/dirs/run/fabricd /out/dirs/run/join /out/dirs/var/lib/fabricd && \
    chmod 0750 /out/dirs/run/fabricd && chmod 0700 /out/dirs/run/join /out/dirs/var/lib/fabricd

FROM scratch AS apps
COPY --from=build /out/apps/ /
ENV FABRIC_SOCKET=/run/fabricd/fabric.sock
# Not fabricd's user, and of its group, which the socket is for.
USER 65533:65532
ARG VERSION=unknown
LABEL org.opencontainers.image.title="fabricd-apps" \
      org.opencontainers.image.description="Two small applications that talk through fabricd" \
      org.opencontainers.image.source="https://github.com/fabricd/fabricd" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"

FROM scratch AS fabricd
COPY --from=build /out/fabricd/ /
COPY --from=build --chown=65532:65532 /out/dirs/ /
ENV FABRIC_STATE_DIR=/var/lib/fabricd \
    FABRIC_SOCKET=/run/fabricd/fabric.sock \
    FABRIC_ADMIN=/run/fabricd/admin.sock
USER 65532:65532
# Data and gossip, each over UDP and TCP.
EXPOSE 7700/tcp 7700/udp 7701/tcp 7701/udp
HEALTHCHECK --interval=5s --timeout=3s --start-period=30s --retries=3 CMD ["/fabricd", "health"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["/fabricd"]
CMD ["run"]
ARG VERSION=unknown
LABEL org.opencontainers.image.title="fabricd" \
      org.opencontainers.image.description="One node of a fabric: ports, messages, remote memory, fences, node events" \
      org.opencontainers.image.source="https://github.com/fabricd/fabricd" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}"
