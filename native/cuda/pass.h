// The arguments of the kernels, and the data that one kernel of a call stores for the next.
//
// A batch is cut into chunks: ranges of tokens of nearly equal length, which ignore where rows begin and end.
// A warp computes one chunk at a time. All warps therefore have nearly the same amount of work, whether rows
// are long or short, padded or packed. Every chunk begins at an address that is aligned for 16-byte loads. If
// a row lies in several chunks, each of them stores a partial: the sums over the row's tokens in the chunk.
#pragma once

#include <cstdint>

#include "advantage/recurrence.h"
#include "cuda/cuda.h"
#include "engine/registry.h"

namespace policy_loss::cuda {

// The sizes of blocks and warps. Blocks are small, so that a multiprocessor's shared memory has room for
// several blocks of a kernel that uses a feed (feed.cuh).
constexpr int kThreads = 128;
constexpr int kWarp = 32;
constexpr int kWarps = kThreads / kWarp;
// A quad is the four neighbouring tokens that a lane computes together: 16 bytes of a float32 column.
constexpr int kQuad = 4;
// A tile is the tokens that a warp computes together: one quad per lane, or two in kernels with a feed. These
// fetch a whole tile at once, and compute it in two halves of kTile tokens. The length of a chunk is a
// multiple of kFeedTile.
constexpr int kTile = kWarp * kQuad;
constexpr int kFeedTile = 2 * kTile;
// The largest length of a chunk. It is long enough to make the fixed cost of a chunk negligible, and short
// enough for a lane's float32 sums to stay accurate.
constexpr int kMaxChunk = 8192;
static_assert(kMaxChunk / kFeedTile <= 32, "a chunk's tiles are bits of a 32-bit number");
// The number of tokens in a device's array is rounded up to a multiple of kGranule. Kernels can therefore
// read 16 bytes at once even at the end of the mask, which has one byte per token.
constexpr int kGranule = 16;
// The largest number of blocks that run on a multiprocessor at once, for a kernel that uses a feed. With this
// many, each block still has enough registers. If a block needs much shared memory, fewer blocks fit.
constexpr int kFedBlocksPerMultiprocessor = 4;
// A stage is the room in shared memory for one tile of a warp. A feed has three stages per warp if that does
// not make fewer blocks fit on a multiprocessor, and two otherwise.
constexpr int kLeastFeedStages = 2;
constexpr int kMostFeedStages = 3;
// The number of bytes before the stages of a warp. They hold the barriers of bulk copies (bulk_copies.cuh).
constexpr int kFeedHeadBytes = 128;
// The largest number of blocks per multiprocessor in the grid of any other kernel.
constexpr int kBlocksPerMultiprocessor = 8;

// A stand-in for the policy loss. Calls without a policy loss use it, and so do kernels that all losses
// share.
struct NoLoss {
  using Row = NoRow;
  static constexpr LossTraits traits{};

  PL_FN TokenTerm token(const NoRow&, const Token&) const { return {0.0f, 0.0f}; }
};

// The sums that the row pass computes over a row, or over the tokens of a row in one chunk.
struct RowTotals {
  double sum = 0;         // Σ row_term() of the loss
  int64_t tokens = 0;     // unmasked tokens
  int64_t negatives = 0;  // tokens with a negative advantage

  PL_FN void add(const RowTotals& other) {
    sum += other.sum;
    tokens += other.tokens;
    negatives += other.negatives;
  }
};

// The sums that a distillation function computes over a row, or over the tokens of a row in one chunk.
struct DistillTotals {
  double divergence = 0, advantage = 0;

  PL_FN void add(const DistillTotals& other) {
    divergence += other.divergence;
    advantage += other.advantage;
  }
};

// The arrays that hold the sums over rows, and the partials of rows in several chunks.
template <class Total>
struct Partials {
  Total* rows;   // [rows] the sums of rows that lie within one chunk
  Total* heads;  // [chunks] the partial of the chunk's first row, if that row begins before the chunk
  Total* tails;  // [chunks] the partial of the chunk's last row, if that row ends after the chunk
};

// The weights and statistics of a row, which the weights pass computes for the token pass. A weight
// multiplies a token's value in the reported sums. A gradient weight multiplies the token's derivative in the
// gradient.
template <class Row>
struct RowState {
  double loss_weight, kl_weight, entropy_weight;
  float grad_weight, kl_grad_weight, entropy_grad_weight;
  int kind;
  unsigned repeats;  // how often the row counts; if 0, all other members are 0
  double tokens;     // the row's unmasked tokens
  Row row;
};

// What the row pass stores about a chunk for the token pass. A tile is live if it has an unmasked token, and
// dead otherwise.
struct ChunkState {
  int64_t first_row;    // the row of the chunk's first token
  int64_t live_before;  // the number of live tiles in all chunks before this one
  unsigned live_tiles;  // bit k: tile k is live
  // Bit k: tile k has no masked token. It may still contain tokens of several rows, or end after the chunk.
  unsigned whole_tiles;
};

// The numbers of unmasked tokens and of rows in the batch, by kind of row, and the numbers of blocks that
// have finished a pass (the tickets). They are integers, because atomic additions of integers give the same
// sum in any order. All are 0 between calls, because the last block of the pass that reads them sets them
// back to 0.
struct Totals {
  unsigned long long tokens[2];
  unsigned long long rows[2];
  unsigned chunk_ticket;
  unsigned row_ticket;
  unsigned token_ticket;
};

// The number of sums that the token pass computes. Their order is: the loss of each kind of row, the metrics
// of the loss, the KL loss, the entropy loss.
constexpr int kTokenSums = 2 + kMaxTokenMetrics + 2;
// The number of sums of a user-defined loss: the loss and the metrics.
constexpr int kProgramSums = 1 + kMaxMetrics;

// How much dynamic shared memory a block of a kernel with a feed (feed.cuh) needs.
struct FeedMemory {
  int stage_bytes;  // the bytes of one stage of all warps
  int least = 0;    // the bytes that the block needs even if the feed needs less

  PL_FN int bytes(int stages) const {
    const int feed = kWarps * kFeedHeadBytes + stages * stage_bytes;
    return feed > least ? feed : least;
  }
};

// A batch on a device, cut into chunks.
struct ChunkedBatch {
  BatchView batch;  // pointers to device memory
  int64_t tokens;
  int64_t chunk_tokens;  // the length of every chunk except the last
  int64_t chunks;        // the number of chunks
  int64_t fed_blocks;    // the most blocks that the GPU runs at once, for a kernel that uses a feed
  int feed_stages;       // the number of stages of a feed
};

// The arguments of the row pass, the weights pass and the token pass.
struct Pass : ChunkedBatch {
  unsigned columns;  // the columns that the function reads
  Terms terms;
  Coefficients coefficients;
  Normalizer normalizer;

  Totals* totals;
  // The totals of the batch's mask pass (mask_pass.h), or null if the call launches a row pass.
  const Totals* known;
  Partials<RowTotals> partials;
  ChunkState* chunk_states;  // [chunks]
  void* states;              // [rows] of RowState<Row>, with the loss's Row
  double* pair_sums;         // [rows] the row sums of a loss over pairs
  double* row_partials;      // [blocks of the weights pass][kMaxRowMetrics]
  double* token_partials;    // [blocks of the token pass][kTokenSums or kProgramSums]
  Result* result;
  // The result in mapped memory of the host, where the last block of the call's last kernel copies it. Null
  // in the other kernels, and if the device cannot write there.
  Result* host_result;
  float* grad;          // per token; null if not wanted
  float* grad_entropy;  // per token; null if not wanted
  float* grad_log_z;    // per row; null if not wanted
};

// Numbers that one kernel of an advantage function stores for the next. All are 0 when the call begins.
struct AdvantageState {
  // The complement (~) of 8·row + NonFiniteInput for the first value that is not finite, or 0 if all values
  // are finite. The complement lets atomicMax() find the first row.
  unsigned long long non_finite;
  unsigned long long rewarded;  // the number of rows whose value is not 0
  unsigned ticket;
  Whitening whitening;
};

// A tile of a row (tiles.cuh), for a recurrence whose tiles are computed by different warps.
struct TileState {
  // First x at the tile's first token, computed as if no token followed the tile. Then x at the token
  // after the tile.
  double x;
  double decay;      // the product of the decays of the tile's tokens
  float next_value;  // the value of the first unmasked token after the tile, or 0
  bool rewarded;     // the row's reward belongs to the tile's last unmasked token
};

// A tile of a row, for a function with a baseline per token. The sums are first those over the tile.
struct BaselineTile {
  double to_go;   // the sum of rewards; then that over the tokens after the tile
  double weight;  // the sum of energies; then that over the tokens before the tile
  int64_t place;  // the number of unmasked tokens; then that before the tile
  bool rewarded;  // as in TileState
};

// The arguments of the kernels of an advantage function.
struct AdvantagePass : ChunkedBatch {  // its columns are AdvantageColumns
  const double* rewards;               // per row; null: the batch has none
  const double* baselines;             // per row; null: the batch has none
  const double* named_rewards;         // as in AdvantageBatch; null: the function does not read them
  const double* reward_weights;
  int64_t named;
  uint64_t seed;
  AdvantageState* state;

  // Group functions.
  GroupsView groups;
  int row_value_column;  // the AdvantageColumn from which row_values are computed
  Partials<RowTotals> partials;
  double* row_values;    // per row: the sum of its token rewards, or its mean log-probability
  double* row_tokens;    // per row, its unmasked tokens; null: not needed
  double* penalised;     // rewards after the rank penalty, in the order of groups.members; null: no penalty
  int64_t* negatives;    // scratch for drawing members to leave out, in the same order
  uint8_t* left_out;     // in the same order
  float* member_scores;  // per member; the same array as `scores` if every row is a member
  uint32_t* member_repeats;  // per member; the same array as `repeats` if every row is a member
  int64_t* kept;             // the groups that are kept, from which duplicates are drawn
  uint32_t* drawn;           // per group, how often it was drawn
  GroupOutcome* outcomes;    // per group
  double* unwhitened;        // per row, its score before whitening; null: scores are not whitened
  float* scores;             // per row
  uint32_t* repeats;         // per row

  // Functions that whiten.
  Spread* spreads;  // [blocks] the spread of the unmasked advantages that a block computed

  // Recurrences over few, long rows.
  TileState* tiles;  // per tile

  // Functions with a baseline per token. Places are explained in advantage/token_baseline.h; the place p of a
  // row is stored at the row's token p.
  double* to_go;                 // per token, its reward to go
  double* weights;               // per place, the sum of the energies up to it; then its baseline
  double* weighted;              // per place, weights·(reward to go)
  BaselineTile* baseline_tiles;  // per tile

  // Distillation.
  Partials<DistillTotals> distill_partials;
  double* row_divergences;
  double* row_advantages;

  float* advantages;  // per token
  float* returns;     // per token; null if not wanted
};

// Returns whether rows have so many partials that a whole warp, instead of one thread, adds up those of a
// row.
PL_FN bool is_row_for_warp(const ChunkedBatch& batch) {
  constexpr int64_t many = 8;  // chunks per row
  return batch.chunks > many * batch.batch.layout.rows;
}

// The output of the KL kernel: the KL values or, with a base, base − scale·kl for unmasked tokens and base
// for masked tokens. The base is stored as the batch's column of advantages.
struct KlOutput {
  bool has_base;
  float scale;
  float* out;
};

}  // namespace policy_loss::cuda
