// Parsing a GGUF file and checking everything that can be wrong with its container.
// Trusts nothing: every count is compared with the bytes that are left before anything is allocated for it,
// and sums and products that could overflow are checked. Damage that hides where the next thing begins stops
// the parser; everything else is collected, so that one run names all problems.
#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "gguf/gguf.h"

namespace sluice::gguf {
namespace {

constexpr uint64_t kMaxAlignment = 1 << 20;
constexpr uint64_t kUnknownOffset = std::numeric_limits<uint64_t>::max();

/// Many times what real files hold (40 keys, 2,000 tensors, 20 kB of text): a file's lists must not take much
/// more memory than the file itself, nor may what is printed of it.
constexpr uint64_t kMostEntries = 1 << 14;
constexpr uint64_t kMostTensors = 1 << 16;
constexpr uint64_t kMostTextBytes = 1 << 24;  // keys, names and strings together; arrays apart

/// Bytes that the shortest entry of each list takes: they bound a count by the file's size.
constexpr uint64_t kLeastEntryBytes = 8 + 4 + 1;           // key length, type, one byte of value
constexpr uint64_t kLeastTensorBytes = 8 + 4 + 8 + 4 + 8;  // name length, dimensions, one, type, offset

/// Bytes of one element, 0 for those of varying length and for unknown types.
uint64_t fixed_size(ValueType type) {
  switch (type) {
    case ValueType::U8:
    case ValueType::I8:
    case ValueType::Bool: return 1;
    case ValueType::U16:
    case ValueType::I16: return 2;
    case ValueType::U32:
    case ValueType::I32:
    case ValueType::F32: return 4;
    case ValueType::U64:
    case ValueType::I64:
    case ValueType::F64: return 8;
    case ValueType::String:
    case ValueType::Array: return 0;
  }
  return 0;
}

template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

/// One number of fixed size from where it lies, widened.
Scalar load_scalar(ValueType type, const std::byte* at) {
  switch (type) {
    case ValueType::U8: return uint64_t{load<uint8_t>(at)};
    case ValueType::I8: return int64_t{load<int8_t>(at)};
    case ValueType::U16: return uint64_t{load<uint16_t>(at)};
    case ValueType::I16: return int64_t{load<int16_t>(at)};
    case ValueType::U32: return uint64_t{load<uint32_t>(at)};
    case ValueType::I32: return int64_t{load<int32_t>(at)};
    case ValueType::F32: return double{load<float>(at)};
    case ValueType::Bool: return load<uint8_t>(at) != 0;
    case ValueType::U64: return load<uint64_t>(at);
    case ValueType::I64: return load<int64_t>(at);
    case ValueType::F64: return load<double>(at);
    case ValueType::String:
    case ValueType::Array: break;
  }
  return uint64_t{0};
}

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

/// Indices 0 .. count - 1 sorted by name(index); equal names stay in file order.
template <typename Name>
std::vector<uint32_t> sorted_by(size_t count, Name name) {
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return name(a) < name(b); });
  return order;
}

}  // namespace

std::vector<Scalar> elements(const Array& array, uint64_t limit) {
  const uint64_t count = std::min(array.count, limit), size = fixed_size(array.type);
  std::vector<Scalar> result;
  result.reserve(count);
  const std::byte* at = array.bytes.data();
  for (uint64_t i = 0; i < count; ++i) {
    if (array.type == ValueType::String) {
      const uint64_t length = load<uint64_t>(at);
      result.emplace_back(as_text({at + 8, length}));
      at += 8 + length;
    } else {
      result.push_back(load_scalar(array.type, at));
      at += size;
    }
  }
  return result;
}

/// Reads one file front to back into a File.
class Parser {
 public:
  explicit Parser(File& file) : file_(file), bytes_(file.bytes_) {}

  void run() {
    header();
    metadata();
    alignment();
    tensor_list();
    tensor_data();
    problems_.throw_if_any(file_.path_);
  }

 private:
  /// Ends parsing with a last problem: what follows cannot be found any more.
  template <typename... Args>
  [[noreturn]] void stop(fmt::format_string<Args...> format, Args&&... args) {
    problems_.add(format, std::forward<Args>(args)...);
    problems_.throw_if_any(file_.path_);
    std::abort();  // not reached: there is a problem
  }

  uint64_t left() const { return bytes_.size() - at_; }

  /// What is being read, for messages: "metadata key 3 of 40 (general.name)", "tensor 0 of 844".
  std::string where() const {
    if (list_ == nullptr) return "the header";
    std::string text = fmt::format("{} {} of {}", list_, index_ + 1, total_);
    if (!name_.empty()) text += fmt::format(" ({})", printable(name_, 80));
    return text;
  }

  /// The next `count` bytes. `what` names them in the message when the file ends before.
  std::span<const std::byte> take(uint64_t count, const char* what) {
    if (count > left()) {
      stop("the file ends in {}: {} needs {} bytes at byte {}, {} are left", where(), what, count, at_,
           left());
    }
    const auto taken = bytes_.subspan(at_, count);
    at_ += count;
    return taken;
  }

  template <typename T>
  T take_number(const char* what) {
    return load<T>(take(sizeof(T), what).data());
  }

  std::string_view take_string(const char* what) {
    const uint64_t length = take_number<uint64_t>(what);
    return as_text(take(length, what));
  }

  /// A string that is kept and may be printed.
  std::string_view take_text(const char* what) {
    const std::string_view text = take_string(what);
    text_bytes_ += text.size();
    if (text_bytes_ > kMostTextBytes) {
      stop("{}: keys, names and texts take more than {} bytes", where(), kMostTextBytes);
    }
    return text;
  }

  void header() {
    const auto magic = as_text(take(std::min<uint64_t>(4, left()), "the magic"));
    if (magic == "vers")
      stop("is no GGUF file but, it seems, a pointer of Git LFS to one; `git lfs pull` fetches it");
    if (magic != "GGUF") stop("is no GGUF file: begins with \"{}\", expected \"GGUF\"", printable(magic));
    const uint32_t version = take_number<uint32_t>("the version");
    if (version != 0 && (version & 0xFFFF) == 0) {
      stop("is a big-endian GGUF file; only little-endian ones can be read");
    }
    if (version != 2 && version != 3) stop("has GGUF version {}, expected 2 or 3", version);
    file_.version_ = version;
    tensor_count_ = take_number<uint64_t>("the tensor count");
    entry_count_ = take_number<uint64_t>("the metadata count");
    if (entry_count_ > kMostEntries || tensor_count_ > kMostTensors) {
      stop("the header promises {} metadata entries and {} tensors, expected at most {} and {}", entry_count_,
           tensor_count_, kMostEntries, kMostTensors);
    }
    if (entry_count_ > left() / kLeastEntryBytes) {
      stop("the header promises {} metadata entries; the {} bytes after it cannot hold them", entry_count_,
           left());
    }
    if (tensor_count_ > left() / kLeastTensorBytes) {
      stop("the header promises {} tensors; the {} bytes after it cannot hold them", tensor_count_, left());
    }
  }

  void metadata() {
    list_ = "metadata key";
    total_ = entry_count_;
    file_.metadata_.reserve(entry_count_);
    for (index_ = 0; index_ < total_; ++index_) {
      name_ = {};
      Entry entry;
      entry.key = name_ = take_text("the key");
      if (entry.key.empty()) problems_.add("{}: the key is empty", where());
      entry.value = value();
      file_.metadata_.push_back(entry);
    }
    file_.by_key_ = sorted_by(file_.metadata_.size(), [&](uint32_t i) { return file_.metadata_[i].key; });
    for (size_t i = 1; i < file_.by_key_.size(); ++i) {
      const std::string_view key = file_.metadata_[file_.by_key_[i]].key;
      if (key == file_.metadata_[file_.by_key_[i - 1]].key) {
        problems_.add("metadata key {} occurs twice", printable(key));
      }
    }
  }

  ValueType take_type(const char* what) {
    const uint32_t id = take_number<uint32_t>(what);
    if (id > static_cast<uint32_t>(ValueType::F64)) stop("{}: unknown value type {}", where(), id);
    return static_cast<ValueType>(id);
  }

  Value value() {
    Value result;
    result.type = take_type("the value's type");
    if (result.type == ValueType::String) {
      result.value = take_text("the string");
    } else if (result.type == ValueType::Array) {
      result.value = array();
    } else {
      const auto bytes = take(fixed_size(result.type), "the value");
      if (result.type == ValueType::Bool) check_bools(bytes);
      result.value = load_scalar(result.type, bytes.data());
    }
    return result;
  }

  Array array() {
    Array result;
    result.type = take_type("the elements' type");
    result.count = take_number<uint64_t>("the element count");
    if (result.type == ValueType::Array) stop("{}: arrays of arrays are not supported", where());
    const uint64_t least = result.type == ValueType::String ? 8 : fixed_size(result.type);
    if (result.count > left() / least) {
      stop("the file ends in {}: {} elements of type {} do not fit into the {} bytes that are left", where(),
           result.count, type_name(result.type), left());
    }
    if (result.type == ValueType::String) {
      const uint64_t begin = at_;
      for (uint64_t i = 0; i < result.count; ++i) take_string("a string");
      result.bytes = bytes_.subspan(begin, at_ - begin);
    } else {
      result.bytes = take(result.count * least, "the elements");
      if (result.type == ValueType::Bool) check_bools(result.bytes);
    }
    return result;
  }

  void check_bools(std::span<const std::byte> bytes) {
    for (const std::byte byte : bytes) {
      if (byte > std::byte{1}) {
        problems_.add("{}: byte {} is no bool", where(), std::to_integer<int>(byte));
        return;
      }
    }
  }

  void alignment() {
    const Value* value = file_.find("general.alignment");
    if (value == nullptr) return;
    uint64_t alignment = 0;
    if (const auto* number = std::get_if<uint64_t>(&value->value)) alignment = *number;
    if (const auto* number = std::get_if<int64_t>(&value->value); number != nullptr && *number > 0) {
      alignment = static_cast<uint64_t>(*number);
    }
    if (alignment < 8 || alignment > kMaxAlignment || !std::has_single_bit(alignment)) {
      stop("general.alignment is no power of two from 8 to {}", kMaxAlignment);
    }
    file_.alignment_ = alignment;
  }

  void tensor_list() {
    list_ = "tensor";
    total_ = tensor_count_;
    file_.tensors_.reserve(tensor_count_);
    offsets_.reserve(tensor_count_);
    for (index_ = 0; index_ < total_; ++index_) tensor();
    list_ = nullptr;
    file_.index_tensors(problems_);
  }

  /// One row of the tensor list. Its bytes are found later, when all rows are read.
  void tensor() {
    name_ = {};
    Tensor tensor;
    tensor.name = name_ = take_text("the name");
    if (tensor.name.empty()) problems_.add("{}: the name is empty", where());
    const uint32_t dimensions = take_number<uint32_t>("the number of dimensions");
    if (dimensions < 1 || dimensions > 4) stop("{}: {} dimensions, expected 1 to 4", where(), dimensions);
    tensor.dimensions = static_cast<int>(dimensions);
    std::array<uint64_t, 4> shape = {1, 1, 1, 1};
    for (uint32_t i = 0; i < dimensions; ++i) shape[i] = take_number<uint64_t>("the shape");
    const uint32_t type = take_number<uint32_t>("the type");
    const uint64_t offset = take_number<uint64_t>("the offset");
    bool sound = set_shape(tensor, shape);
    if (const quant::TypeInfo* info = quant::find_type(type); info == nullptr) {
      problems_.add("tensor {}: type id {} is unknown{}", printable(name_), type,
                    type >= 128 ? " (ids from 128 on are formats of ik_llama.cpp)" : "");
      sound = false;
    } else {
      tensor.type = info->type;
      sound = sound && check_rows(tensor, *info);
    }
    if (offset % file_.alignment_ != 0) {
      problems_.add("tensor {}: offset {} is no multiple of the alignment {}", printable(name_), offset,
                    file_.alignment_);
      sound = false;
    }
    file_.tensors_.push_back(tensor);
    offsets_.push_back(sound ? offset : kUnknownOffset);
  }

  /// False, with a problem, when a dimension is 0 or the count or the byte size could overflow.
  bool set_shape(Tensor& tensor, const std::array<uint64_t, 4>& shape) {
    // No type takes more than 8 bytes a number, so below this limit sizes in bytes cannot overflow either.
    constexpr uint64_t kMostNumbers = std::numeric_limits<int64_t>::max() / 8;
    uint64_t count = 1;
    for (size_t i = 0; i < shape.size(); ++i) {
      if (shape[i] == 0 || shape[i] > kMostNumbers / count) {
        problems_.add("tensor {}: dimension {} of its shape is {}, which is {}", printable(name_), i,
                      shape[i], shape[i] == 0 ? "empty" : "too large");
        return false;
      }
      count *= shape[i];
      tensor.shape[i] = static_cast<int64_t>(shape[i]);
    }
    return true;
  }

  bool check_rows(const Tensor& tensor, const quant::TypeInfo& info) {
    if (tensor.shape[0] % info.block == 0) return true;
    problems_.add("tensor {}: rows of {} numbers, {} needs a multiple of {}", printable(name_),
                  tensor.shape[0], info.name, info.block);
    return false;
  }

  /// Gives every sound tensor its bytes; finds those past the end of the file and those that overlap.
  void tensor_data() {
    const uint64_t mask = file_.alignment_ - 1, begin = (at_ + mask) & ~mask;
    const uint64_t available = begin < bytes_.size() ? bytes_.size() - begin : 0;
    size_t cut_off = 0, first_cut_off = 0;
    uint64_t needed = 0;
    for (size_t i = 0; i < file_.tensors_.size(); ++i) {
      Tensor& tensor = file_.tensors_[i];
      if (offsets_[i] == kUnknownOffset) continue;
      const auto size = static_cast<uint64_t>(quant::bytes_of(quant::type_info(tensor.type), tensor.count()));
      if (offsets_[i] > available || size > available - offsets_[i]) {
        if (cut_off++ == 0) first_cut_off = i;
        needed = std::max(needed, offsets_[i] + std::min(size, kUnknownOffset - offsets_[i]));
        offsets_[i] = kUnknownOffset;
      } else {
        tensor.bytes = bytes_.subspan(begin + offsets_[i], size);
      }
    }
    if (cut_off > 0) {
      problems_.add(
          "the file is cut off: {} of {} tensors reach past its end, {} first; it has {} bytes of tensor "
          "data, expected {}",
          cut_off, file_.tensors_.size(), printable(file_.tensors_[first_cut_off].name), available, needed);
    }
    check_overlaps();
  }

  void check_overlaps() {
    std::vector<uint32_t> order;
    for (uint32_t i = 0; i < file_.tensors_.size(); ++i) {
      if (offsets_[i] != kUnknownOffset) order.push_back(i);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return offsets_[a] < offsets_[b]; });
    for (size_t i = 1; i < order.size(); ++i) {
      const Tensor &before = file_.tensors_[order[i - 1]], &tensor = file_.tensors_[order[i]];
      if (offsets_[order[i]] - offsets_[order[i - 1]] < before.bytes.size()) {
        problems_.add("tensor {}: its bytes overlap those of {}", printable(tensor.name),
                      printable(before.name));
      }
    }
  }

  File& file_;
  std::span<const std::byte> bytes_;
  uint64_t at_ = 0;
  Problems problems_;
  uint64_t entry_count_ = 0, tensor_count_ = 0, text_bytes_ = 0;
  std::vector<uint64_t> offsets_;  ///< of each tensor in the data; kUnknownOffset: it has a problem
  // What is being read (where()).
  const char* list_ = nullptr;
  uint64_t index_ = 0, total_ = 0;
  std::string_view name_;
};

File File::parse(const std::string& name, std::span<const std::byte> bytes) {
  File file(name, bytes);
  Parser(file).run();
  return file;
}

void File::index_tensors(Problems& problems) {
  by_name_ = sorted_by(tensors_.size(), [&](uint32_t i) { return tensors_[i].name; });
  for (size_t i = 1; i < by_name_.size(); ++i) {
    const std::string_view name = tensors_[by_name_[i]].name;
    if (name == tensors_[by_name_[i - 1]].name) problems.add("tensor {} occurs twice", printable(name));
  }
}

}  // namespace sluice::gguf
