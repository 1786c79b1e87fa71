// A TensorFlow plugin with devices of type "GPU" that compute on the CPU, in the host's memory.
//
// Operations with a CUDA kernel in the wheel get the CPU kernel on these devices, with the same types and host-memory
// arguments. (The few operations without a CPU kernel fail when they are created.) So placement, copies, memory growth
// and visible devices are TensorFlow's own, but numerics, streams, NCCL and speed are not a GPU's.
//
// Environment: STANDIN_GPUS is the number of devices (default 4), limited by CUDA_VISIBLE_DEVICES; STANDIN_MB is the
// memory of each in MiB (default 2048). `standin_report` returns the copies and allocations so far, for ctypes.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "tensorflow/c/experimental/stream_executor/stream_executor.h"
#include "tensorflow/core/framework/device.h"
#include "tensorflow/core/framework/node_properties.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

struct SP_Stream_st {};
struct SP_Event_st {};
struct SP_Timer_st {};

namespace {

namespace tf = tensorflow;
using Lock = std::lock_guard<std::mutex>;

constexpr int kHost = -1;

struct Copies {
  long count, bytes;
};
struct Block {
  uint64_t size;
  int device;
};
// Never destroyed, because TensorFlow's threads free memory until the process has ended.
auto& mutex = *new std::mutex;  // guards the three maps below
auto& copies = *new std::map<std::pair<int, int>, Copies>;  // (from, to) -> copies
auto& blocks = *new std::map<const char*, Block>;  // start -> a block of a device's memory
auto& allocated = *new std::map<int, uint64_t>;  // device -> bytes

int number_in(const char* name, int otherwise) {
  const char* value = getenv(name);
  return value && *value ? atoi(value) : otherwise;
}

void count(int from, int to, uint64_t bytes) {
  Lock lock(mutex);
  Copies& sum = copies[{from, to}];
  ++sum.count;
  sum.bytes += bytes;
}

int device_of(const void* address) {
  Lock lock(mutex);
  auto next = blocks.upper_bound(static_cast<const char*>(address));
  if (next == blocks.begin()) return kHost;
  const auto& [start, block] = *--next;
  return address < start + block.size ? block.device : kHost;
}

// ------------------------------------------------------------------------------------------------------ the devices

void ok(TF_Status* status) { TF_SetStatus(status, TF_OK, ""); }

void count_devices(const SP_Platform*, int* number, TF_Status* status) {
  *number = number_in("STANDIN_GPUS", 4);
  if (const char* visible = getenv("CUDA_VISIBLE_DEVICES")) {
    const bool any = *visible && *visible != '-';
    *number = std::min<int>(*number, any ? 1 + std::count(visible, visible + strlen(visible), ',') : 0);
  }
  ok(status);
}

void create_device(const SP_Platform*, SE_CreateDeviceParams* params, TF_Status* status) {
  params->device->struct_size = SP_DEVICE_STRUCT_SIZE;
  params->device->ordinal = params->ordinal;
  params->device->hardware_name = "stand-in GPU";
  params->device->device_vendor = "none";
  params->device->pci_bus_id = "0000:00:00.0";
  ok(status);
}

void create_device_fns(const SP_Platform*, SE_CreateDeviceFnsParams* params, TF_Status* status) {
  params->device_fns->struct_size = SP_DEVICE_FNS_STRUCT_SIZE;
  params->device_fns->get_numa_node = [](const SP_Device*) -> int32_t { return 0; };
  params->device_fns->get_memory_bandwidth = [](const SP_Device*) -> int64_t { return -1; };
  params->device_fns->get_gflops = [](const SP_Device*) -> double { return -1; };
  ok(status);
}

void create_timer_fns(const SP_Platform*, SP_TimerFns* fns, TF_Status* status) {
  fns->struct_size = SP_TIMER_FNS_STRUCT_SIZE;
  fns->nanoseconds = [](SP_Timer) -> uint64_t { return 0; };
  ok(status);
}

void* allocate_host(const SP_Device*, uint64_t size) { return aligned_alloc(256, (size + 255) / 256 * 256); }

void allocate(const SP_Device* device, uint64_t size, int64_t, SP_DeviceMemoryBase* memory) {
  memory->struct_size = SP_DEVICE_MEMORY_BASE_STRUCT_SIZE;
  memory->opaque = allocate_host(device, size);
  memory->size = size;
  Lock lock(mutex);
  blocks[static_cast<char*>(memory->opaque)] = {size, device->ordinal};
  allocated[device->ordinal] += size;
}

void deallocate(const SP_Device* device, SP_DeviceMemoryBase* memory) {
  {
    Lock lock(mutex);
    blocks.erase(static_cast<char*>(memory->opaque));
    allocated[device->ordinal] -= memory->size;
  }
  free(memory->opaque);
}

TF_Bool report_memory(const SP_Device* device, int64_t* unused, int64_t* total) {
  Lock lock(mutex);
  *total = static_cast<int64_t>(number_in("STANDIN_MB", 2048)) << 20;
  *unused = *total - allocated[device->ordinal];
  return 1;
}

void to_host(const SP_Device* device, void* to, const SP_DeviceMemoryBase* from, uint64_t size, TF_Status* status) {
  count(device->ordinal, kHost, size);
  memcpy(to, from->opaque, size);
  ok(status);
}
void from_host(const SP_Device* device, SP_DeviceMemoryBase* to, const void* from, uint64_t size, TF_Status* status) {
  count(kHost, device->ordinal, size);
  memcpy(to->opaque, from, size);
  ok(status);
}
void between(const SP_Device*, SP_DeviceMemoryBase* to, const SP_DeviceMemoryBase* from, uint64_t size,
             TF_Status* status) {
  const int source = device_of(from->opaque), target = device_of(to->opaque);
  if (source != target) count(source, target, size);
  memcpy(to->opaque, from->opaque, size);
  ok(status);
}

// Functions return only after their work is done, so streams, events and timers have no state.
void create_executor(const SP_Platform*, SE_CreateStreamExecutorParams* params, TF_Status* status) {
  static SP_Stream_st a_stream;
  static SP_Event_st an_event;
  static SP_Timer_st a_timer;
  SP_StreamExecutor* fns = params->stream_executor;
  fns->struct_size = SP_STREAMEXECUTOR_STRUCT_SIZE;
  fns->allocate = allocate;
  fns->deallocate = deallocate;
  fns->host_memory_allocate = allocate_host;
  fns->host_memory_deallocate = [](const SP_Device*, void* memory) { free(memory); };
  fns->get_allocator_stats = [](const SP_Device*, SP_AllocatorStats*) -> TF_Bool { return 0; };
  fns->device_memory_usage = report_memory;
  fns->create_stream = [](const SP_Device*, SP_Stream* stream, TF_Status* s) { *stream = &a_stream, ok(s); };
  fns->destroy_stream = [](const SP_Device*, SP_Stream) {};
  fns->create_stream_dependency = [](const SP_Device*, SP_Stream, SP_Stream, TF_Status* s) { ok(s); };
  fns->get_stream_status = [](const SP_Device*, SP_Stream, TF_Status* s) { ok(s); };
  fns->create_event = [](const SP_Device*, SP_Event* event, TF_Status* s) { *event = &an_event, ok(s); };
  fns->destroy_event = [](const SP_Device*, SP_Event) {};
  fns->get_event_status = [](const SP_Device*, SP_Event) { return SE_EVENT_COMPLETE; };
  fns->record_event = [](const SP_Device*, SP_Stream, SP_Event, TF_Status* s) { ok(s); };
  fns->wait_for_event = [](const SP_Device*, SP_Stream, SP_Event, TF_Status* s) { ok(s); };
  fns->create_timer = [](const SP_Device*, SP_Timer* timer, TF_Status* s) { *timer = &a_timer, ok(s); };
  fns->destroy_timer = [](const SP_Device*, SP_Timer) {};
  fns->start_timer = [](const SP_Device*, SP_Stream, SP_Timer, TF_Status* s) { ok(s); };
  fns->stop_timer = [](const SP_Device*, SP_Stream, SP_Timer, TF_Status* s) { ok(s); };
  fns->memcpy_dtoh = [](const SP_Device* device, SP_Stream, void* to, const SP_DeviceMemoryBase* from, uint64_t size,
                        TF_Status* s) { to_host(device, to, from, size, s); };
  fns->memcpy_htod = [](const SP_Device* device, SP_Stream, SP_DeviceMemoryBase* to, const void* from, uint64_t size,
                        TF_Status* s) { from_host(device, to, from, size, s); };
  fns->memcpy_dtod = [](const SP_Device* device, SP_Stream, SP_DeviceMemoryBase* to, const SP_DeviceMemoryBase* from,
                        uint64_t size, TF_Status* s) { between(device, to, from, size, s); };
  fns->sync_memcpy_dtoh = to_host;
  fns->sync_memcpy_htod = from_host;
  fns->sync_memcpy_dtod = between;
  fns->block_host_for_event = [](const SP_Device*, SP_Event, TF_Status* s) { ok(s); };
  fns->block_host_until_done = [](const SP_Device*, SP_Stream, TF_Status* s) { ok(s); };
  fns->synchronize_all_activity = [](const SP_Device*, TF_Status* s) { ok(s); };
  fns->mem_zero = [](const SP_Device*, SP_Stream, SP_DeviceMemoryBase* memory, uint64_t size, TF_Status* s) {
    memset(memory->opaque, 0, size), ok(s);
  };
  fns->memset = [](const SP_Device*, SP_Stream, SP_DeviceMemoryBase* memory, uint8_t byte, uint64_t size,
                   TF_Status* s) { memset(memory->opaque, byte, size), ok(s); };
  fns->memset32 = [](const SP_Device*, SP_Stream, SP_DeviceMemoryBase* memory, uint32_t word, uint64_t size,
                     TF_Status* s) { std::fill_n(static_cast<uint32_t*>(memory->opaque), size / 4, word), ok(s); };
  fns->host_callback = [](const SP_Device*, SP_Stream, SE_StatusCallbackFn function, void* argument) -> TF_Bool {
    TF_Status* status = TF_NewStatus();
    function(argument, status);
    const bool good = TF_GetCode(status) == TF_OK;
    TF_DeleteStatus(status);
    return good;
  };
  ok(status);
}

// ------------------------------------------------------------------------------------------------------ the kernels

class Kernel : public tf::OpKernel {
 public:
  Kernel(tf::OpKernelConstruction* c, tf::OpKernel* on_cpu) : OpKernel(c), on_cpu_(on_cpu) {}
  void Compute(tf::OpKernelContext* context) override { on_cpu_->Compute(context); }
  bool IsExpensive() override { return on_cpu_->IsExpensive(); }
  const tf::Tensor* const_tensor() const override { return on_cpu_->const_tensor(); }

 private:
  std::unique_ptr<tf::OpKernel> on_cpu_;
};

class AsyncKernel : public tf::AsyncOpKernel {
 public:
  AsyncKernel(tf::OpKernelConstruction* c, tf::OpKernel* on_cpu) : AsyncOpKernel(c), on_cpu_(on_cpu) {}
  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    on_cpu_->AsAsync()->ComputeAsync(context, std::move(done));
  }
  bool IsExpensive() override { return on_cpu_->IsExpensive(); }

 private:
  std::unique_ptr<tf::OpKernel> on_cpu_;
};

tf::OpKernel* make_kernel(tf::OpKernelConstruction* c) {
  tf::NodeDef node = c->def();
  auto hint = node.mutable_attr()->find("communication_hint");
  if (hint != node.mutable_attr()->end()) hint->second.set_s("ring");  // instead of NCCL
  std::shared_ptr<const tf::NodeProperties> properties;
  auto status = tf::NodeProperties::CreateFromNodeDef(node, tf::OpRegistry::Global(), &properties);
  tf::OpKernel* on_cpu = nullptr;
  if (status.ok()) {
    auto* device = static_cast<tf::Device*>(c->device());
    status = tf::CreateOpKernel(tf::DeviceType(tf::DEVICE_CPU), device, device->GetAllocator({}),
                                c->function_library(), c->resource_manager(), properties, c->graph_def_version(),
                                &on_cpu);
  }
  if (!status.ok()) {
    c->SetStatus(status);
    return nullptr;
  }
  if (on_cpu->AsAsync()) return new AsyncKernel(c, on_cpu);
  return new Kernel(c, on_cpu);
}

}  // namespace

extern "C" {

// Lines 'copied FROM TO COUNT BYTES' and 'allocated DEVICE BYTES'; valid until the next call.
const char* standin_report() {
  static std::string text;
  text.clear();
  Lock lock(mutex);
  for (const auto& [way, sum] : copies)
    text += "copied " + std::to_string(way.first) + " " + std::to_string(way.second) + " " +
            std::to_string(sum.count) + " " + std::to_string(sum.bytes) + "\n";
  for (const auto& [device, bytes] : allocated)
    text += "allocated " + std::to_string(device) + " " + std::to_string(bytes) + "\n";
  return text.c_str();
}

void SE_InitPlugin(SE_PlatformRegistrationParams* params, TF_Status* status) {
  params->platform->struct_size = SP_PLATFORM_STRUCT_SIZE;
  params->platform->name = "STAND_IN";
  params->platform->type = "GPU";
  params->platform->use_bfc_allocator = 1;  // TensorFlow's allocator, as for CUDA
  SP_PlatformFns* fns = params->platform_fns;
  fns->struct_size = SP_PLATFORM_FNS_STRUCT_SIZE;
  fns->get_device_count = count_devices;
  fns->create_device = create_device;
  fns->destroy_device = [](const SP_Platform*, SP_Device*) {};
  fns->create_device_fns = create_device_fns;
  fns->destroy_device_fns = [](const SP_Platform*, SP_DeviceFns*) {};
  fns->create_stream_executor = create_executor;
  fns->destroy_stream_executor = [](const SP_Platform*, SP_StreamExecutor*) {};
  fns->create_timer_fns = create_timer_fns;
  fns->destroy_timer_fns = [](const SP_Platform*, SP_TimerFns*) {};
  params->destroy_platform = [](SP_Platform*) {};
  params->destroy_platform_fns = [](SP_PlatformFns*) {};
  ok(status);
}

void TF_InitKernel() {
  const tf::KernelList registered = tf::GetAllRegisteredKernels();
  for (const auto& def : registered.kernel()) {
    // TensorFlow's own collectives for plugged-in devices would look for NCCL.
    const bool is_collective = def.device_type() == tf::DEVICE_DEFAULT && def.op().rfind("Collective", 0) == 0;
    if (def.device_type() != tf::DEVICE_GPU && !is_collective) continue;
    auto* on_standin = new tf::KernelDef(def);
    on_standin->set_device_type(tf::DEVICE_GPU);
    on_standin->set_priority(def.priority() + (is_collective ? 1000 : 2000));
    tf::kernel_factory::OpKernelRegistrar(on_standin, "StandIn", make_kernel);
  }
}

}  // extern "C"
