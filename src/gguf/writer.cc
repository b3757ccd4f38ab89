#include "gguf/writer.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "base/error.h"

namespace sluice::gguf {
namespace {

constexpr uint64_t kDefaultAlignment = 32;
constexpr size_t kBufferBytes = 1 << 20;

template <typename T>
inline constexpr bool kIsArray = false;
template <typename T>
inline constexpr bool kIsArray<std::vector<T>> = true;

template <typename T>
constexpr ValueType value_type() {
  if constexpr (std::is_same_v<T, uint8_t>) return ValueType::U8;
  if constexpr (std::is_same_v<T, int8_t>) return ValueType::I8;
  if constexpr (std::is_same_v<T, uint16_t>) return ValueType::U16;
  if constexpr (std::is_same_v<T, int16_t>) return ValueType::I16;
  if constexpr (std::is_same_v<T, uint32_t>) return ValueType::U32;
  if constexpr (std::is_same_v<T, int32_t>) return ValueType::I32;
  if constexpr (std::is_same_v<T, float>) return ValueType::F32;
  if constexpr (std::is_same_v<T, bool>) return ValueType::Bool;
  if constexpr (std::is_same_v<T, std::string>) return ValueType::String;
  if constexpr (std::is_same_v<T, uint64_t>) return ValueType::U64;
  if constexpr (std::is_same_v<T, int64_t>) return ValueType::I64;
  if constexpr (std::is_same_v<T, double>) return ValueType::F64;
}

/// The header as bytes.
class Header {
 public:
  template <typename T>
  void number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
  }

  void string(const std::string& text) {
    number<uint64_t>(text.size());
    bytes_ += text;
  }

  template <typename T>
  void value(const T& value) {
    if constexpr (std::is_same_v<T, std::string>) {
      string(value);
    } else if constexpr (std::is_same_v<T, bool>) {
      number<uint8_t>(value ? 1 : 0);
    } else {
      number(value);
    }
  }

  void entry(const WriteEntry& entry) {
    string(entry.key);
    std::visit(
        [this](const auto& content) {
          using T = std::decay_t<decltype(content)>;
          if constexpr (kIsArray<T>) {
            using Element = typename T::value_type;
            number(ValueType::Array);
            number(value_type<Element>());
            number<uint64_t>(content.size());
            for (const Element& element : content) value<Element>(element);
          } else {
            number(value_type<T>());
            value(content);
          }
        },
        entry.value);
  }

  void tensor(const WriteTensor& tensor, uint64_t offset) {
    string(tensor.name);
    number(static_cast<uint32_t>(tensor.shape.size()));
    for (const int64_t extent : tensor.shape) number(static_cast<uint64_t>(extent));
    number(tensor.type);
    number(offset);
  }

  void pad(uint64_t alignment) {
    while (bytes_.size() % alignment != 0) bytes_ += '\0';
  }

  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

uint64_t align_up(uint64_t size, uint64_t alignment) {
  return (size + alignment - 1) / alignment * alignment;
}

uint64_t alignment_of(const WritePlan& plan) {
  for (const WriteEntry& entry : plan.metadata) {
    if (entry.key == "general.alignment") return std::get<uint32_t>(entry.value);
  }
  return kDefaultAlignment;
}

}  // namespace

int64_t WriteTensor::count() const {
  int64_t product = 1;
  for (const int64_t extent : shape) product *= extent;
  return product;
}

int64_t WriteTensor::bytes() const { return quant::bytes_of(quant::type_info(type), count()); }

std::string WritePlan::header() const {
  const uint64_t alignment = alignment_of(*this);
  Header header;
  header.number<uint32_t>(0x46554747);  // "GGUF"
  header.number<uint32_t>(3);
  header.number<uint64_t>(tensors.size());
  header.number<uint64_t>(metadata.size());
  for (const WriteEntry& entry : metadata) header.entry(entry);
  uint64_t offset = 0;
  for (const WriteTensor& tensor : tensors) {
    header.tensor(tensor, offset);
    offset += align_up(static_cast<uint64_t>(tensor.bytes()), alignment);
  }
  header.pad(alignment);
  return header.take();
}

uint64_t WritePlan::file_bytes() const {
  const uint64_t alignment = alignment_of(*this);
  uint64_t size = header().size();
  for (const WriteTensor& tensor : tensors)
    size += align_up(static_cast<uint64_t>(tensor.bytes()), alignment);
  return size;
}

OutputFile::OutputFile(std::string path) : path_(std::move(path)), buffer_(kBufferBytes) {
  fd_ = open_unfinished(path_, unfinished_);
  if (fd_ < 0) fail("{}: {}", path_, std::strerror(errno));
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!complete_ && unfinished_) ::unlink(path_.c_str());
}

void OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const size_t piece = std::min(bytes.size(), buffer_.size() - filled_);
    std::memcpy(buffer_.data() + filled_, bytes.data(), piece);
    filled_ += piece;
    bytes = bytes.subspan(piece);
    if (filled_ == buffer_.size()) flush();
  }
}

void OutputFile::flush() {
  std::span<const std::byte> left(buffer_.data(), filled_);
  while (!left.empty()) {
    const ssize_t wrote = ::write(fd_, left.data(), left.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) fail("{}: {}", path_, std::strerror(wrote < 0 ? errno : EIO));
    left = left.subspan(static_cast<size_t>(wrote));
  }
  filled_ = 0;
}

void OutputFile::complete() {
  flush();
  // Some file systems report a full disk only now.
  if (::close(std::exchange(fd_, -1)) != 0) fail("{}: {}", path_, std::strerror(errno));
  complete_ = true;
  unfinished_.reset();
}

Writer::Writer(std::string path, const WritePlan& plan)
    : file_(std::move(path)), alignment_(alignment_of(plan)) {
  for (const WriteTensor& tensor : plan.tensors) {
    CHECK(!tensor.shape.empty() && tensor.shape.size() <= 4, "{}", tensor.name);
    CHECK(tensor.count() > 0 && tensor.shape[0] % quant::type_info(tensor.type).block == 0, "{}",
          tensor.name);
    tensor_bytes_.push_back(static_cast<uint64_t>(tensor.bytes()));
  }
  const std::string header = plan.header();
  file_.write(std::as_bytes(std::span(header)));
}

void Writer::write(std::span<const std::byte> bytes) {
  if (bytes.empty()) return;
  CHECK(current_ < tensor_bytes_.size(), "{}: more bytes than the tensors have", file_.path());
  CHECK(bytes.size() <= tensor_bytes_[current_] - current_done_, "{}: tensor {}", file_.path(), current_);
  file_.write(bytes);
  current_done_ += bytes.size();
  if (current_done_ < tensor_bytes_[current_]) return;
  const std::vector<std::byte> padding(align_up(current_done_, alignment_) - current_done_);
  file_.write(padding);
  ++current_;
  current_done_ = 0;
}

void Writer::finish() {
  CHECK(current_ == tensor_bytes_.size(), "{}: {} of {} tensors written", file_.path(), current_,
        tensor_bytes_.size());
  file_.complete();
}

}  // namespace sluice::gguf
