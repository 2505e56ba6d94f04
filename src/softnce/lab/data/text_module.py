"""The sentences of a recipe as tokens, and batches of them for the classifier."""

from softnce.lab.data.batches import EvaluationBatches, Loader
from softnce.lab.data.image_loader import FeatureRows
from softnce.lab.data.module import TrainingData
from softnce.lab.data.sentences import Split, open_sentences
from softnce.lab.models.text import tokenise
from softnce.lab.recipes.recipe import TextRecipe


class SentenceData(TrainingData):
    """Training and evaluation loaders of a recipe: evaluation is on the split that chooses the epoch."""

    def __init__(self, recipe: TextRecipe, world: int = 1) -> None:
        super().__init__(recipe, world)
        self.train = open_sentences(recipe.data, "train")
        self.labels, self.classes = self.train.labels, self.train.classes
        self.samples, self.drop_last = len(self.labels), recipe.data.drop_last

    def train_dataloader(self) -> Loader:
        tokens = tokenise(self.recipe.model, self.train.texts, self.recipe.data.max_tokens)
        return Loader(FeatureRows(tokens, self.labels), self.batches(self.rank))

    def val_dataloader(self) -> Loader:
        return self.evaluation_loader("validation", self.rank)

    def evaluation_loader(self, split: Split, rank: int = 0) -> Loader:
        """Batches of the sentences that are scored (``test``) or choose the epoch (``validation``)."""
        sentences = open_sentences(self.recipe.data, split)
        tokens = tokenise(self.recipe.model, sentences.texts, self.recipe.data.max_tokens)
        batches = EvaluationBatches(len(tokens), self.recipe.compute.eval_batch, rank, self.world)
        return Loader(FeatureRows(tokens, sentences.labels), batches)
