#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <unistd.h>

#include <thread>

#include "commands.h"
#include "model_files.h"
#include "settings.h"
#include "signals.h"

namespace fathom {
namespace {

// Every connection is a descriptor; the default limit is 1,024.
void RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

Status RunServe() {
  TRY(Settings settings, ResolveSettings());
  if (settings.idle_rank) return {};
  RaiseDescriptorLimit();
  spdlog::info("fathom {} serves {} from {}", settings.server.version, settings.server.model_id,
               settings.engine.model_dir);

  // The handler is known to the server before the model is: it listens only after Start.
  struct LateHandler : HttpHandler {
    Routes* routes = nullptr;
    void Handle(HttpRequest request, std::shared_ptr<HttpExchange> exchange) override {
      routes->Handle(std::move(request), std::move(exchange));
    }
  } handler;
  TRY(const std::unique_ptr<HttpServer> server, HttpServer::Bind(settings.http, &handler));
  TRY(const LoadedModel model, LoadModel(settings));
  Routes routes(settings.server, model.engine.get(), model.tokenizer.get(), model.encoder.get());
  handler.routes = &routes;
  CatchSignals();
  TRY_STATUS(server->Start());
  // Scripts wait for these two lines.
  spdlog::info("Brpc Server Started on port {}", server->port());
  spdlog::info("Application startup complete.");

  while (!WaitForSignal(0, 3600)) {
  }
  spdlog::info("draining: no new requests, {} running ones may take {} s",
               routes.concurrent_requests(), settings.drain_timeout_s);
  routes.StartDraining();
  server->StartDraining();
  std::jthread second([](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      if (WaitForSignal(1, 0.1)) ::_exit(1);
    }
  });
  model.engine->Drain(settings.drain_timeout_s);
  server->Stop(5);
  spdlog::info("stopped");
  return {};
}

}  // namespace fathom
