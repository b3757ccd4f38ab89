// tests/fuzz/request_fuzz.cc over its corpus. Its CHECKs end the program where the server would be wrong.
#include "support/fuzz_corpus.h"

namespace sluice::test {
namespace {

TEST(RequestFuzz, ItsCorpusDoesNoHarm) { EXPECT_GE(run_corpus("request"), 50); }

}  // namespace
}  // namespace sluice::test
